-- Samples: MergeTree, in partitions of an hour so that a bound on disk drops little at a time, ordered for "this node, these minutes" and "this interface over weeks".
-- The window of deduplication tokens lets the writer repeat a block after a crash without a trace.

CREATE TABLE IF NOT EXISTS tcp_flows
(
    at DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    node LowCardinality(String),
    zone LowCardinality(String),
    local String CODEC(ZSTD(1)),
    remote String CODEC(ZSTD(1)),
    interval_ns UInt64 CODEC(T64, ZSTD(1)),
    rtt_us UInt64 CODEC(T64, ZSTD(1)),
    cwnd_segments UInt64 CODEC(T64, ZSTD(1)),
    segments_sent UInt64 CODEC(T64, ZSTD(1)),
    segments_retransmitted UInt64 CODEC(T64, ZSTD(1)),
    bytes_sent UInt64 CODEC(T64, ZSTD(1)),
    bytes_received UInt64 CODEC(T64, ZSTD(1)),
    delivery_rate_bytes_per_s UInt64 CODEC(T64, ZSTD(1)),
    clock_error_ns UInt64 CODEC(T64, ZSTD(1))
)
ENGINE = MergeTree
PARTITION BY toStartOfHour(at)
ORDER BY (node, at, remote, local)
SETTINGS non_replicated_deduplication_window = 10000, ttl_only_drop_parts = 1;

CREATE TABLE IF NOT EXISTS interface_counters
(
    at DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    node LowCardinality(String),
    zone LowCardinality(String),
    interface LowCardinality(String),
    carrier Bool,
    speed_mbps UInt64 CODEC(T64, ZSTD(1)),
    rx_bytes UInt64 CODEC(DoubleDelta, ZSTD(1)),
    tx_bytes UInt64 CODEC(DoubleDelta, ZSTD(1)),
    rx_packets UInt64 CODEC(DoubleDelta, ZSTD(1)),
    tx_packets UInt64 CODEC(DoubleDelta, ZSTD(1)),
    rx_errors UInt64 CODEC(DoubleDelta, ZSTD(1)),
    tx_errors UInt64 CODEC(DoubleDelta, ZSTD(1)),
    rx_crc_errors UInt64 CODEC(DoubleDelta, ZSTD(1)),
    rx_dropped UInt64 CODEC(DoubleDelta, ZSTD(1)),
    tx_dropped UInt64 CODEC(DoubleDelta, ZSTD(1)),
    rx_missed UInt64 CODEC(DoubleDelta, ZSTD(1)),
    rx_pause UInt64 CODEC(DoubleDelta, ZSTD(1)),
    tx_pause UInt64 CODEC(DoubleDelta, ZSTD(1)),
    clock_error_ns UInt64 CODEC(T64, ZSTD(1))
)
ENGINE = MergeTree
PARTITION BY toStartOfHour(at)
ORDER BY (node, interface, at)
SETTINGS non_replicated_deduplication_window = 10000, ttl_only_drop_parts = 1;

-- Events: ReplacingMergeTree, so that one that was sent twice (a producer's crash) is one row. They
-- are few; queries say FINAL.

CREATE TABLE IF NOT EXISTS link_transitions
(
    at DateTime64(9, 'UTC'),
    id FixedString(32),
    node LowCardinality(String),
    zone LowCardinality(String),
    subject String,
    carrier Bool,
    admin_up Bool,
    present Bool,
    physical Bool,
    since DateTime64(9, 'UTC'),
    carrier_losses UInt64,
    unseen UInt64,
    speed_mbps Nullable(UInt64),
    mtu_bytes UInt64,
    clock_error_ns UInt64
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(at)
ORDER BY (node, subject, at, id)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS kernel_reports
(
    at DateTime64(9, 'UTC'),
    id FixedString(32),
    node LowCardinality(String),
    zone LowCardinality(String),
    subject String,
    category LowCardinality(String),
    code Nullable(Int64),
    subcode Nullable(String),
    pci_address Nullable(String),
    pid Nullable(Int64),
    process Nullable(String),
    correctable Nullable(Bool),
    message String CODEC(ZSTD(3)),
    count UInt64,
    first DateTime64(9, 'UTC'),
    boot_id String,
    clock_error_ns UInt64
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(at)
ORDER BY (node, subject, at, id)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS telemetry_dropped
(
    at DateTime64(9, 'UTC'),
    id FixedString(32),
    node LowCardinality(String),
    zone LowCardinality(String),
    messages UInt64,
    message_bytes UInt64,
    from DateTime64(9, 'UTC')
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(at)
ORDER BY (node, at, id)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS signals
(
    at DateTime64(9, 'UTC'),
    id FixedString(32),
    zone LowCardinality(String),
    episode FixedString(32),
    kind LowCardinality(String),
    subject String,
    phase LowCardinality(String),
    raised DateTime64(9, 'UTC'),
    detector LowCardinality(String),
    detector_version UInt32,
    severity LowCardinality(String),
    summary String CODEC(ZSTD(3)),
    document String CODEC(ZSTD(3))
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(at)
ORDER BY (zone, kind, subject, at, id)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS incident_revisions
(
    at DateTime64(9, 'UTC'),
    id FixedString(32),
    zone LowCardinality(String),
    incident FixedString(32),
    revision UInt32,
    state LowCardinality(String),
    kind LowCardinality(String),
    subject String,
    severity LowCardinality(String),
    summary String CODEC(ZSTD(3)),
    confidence Float64,
    opened DateTime64(9, 'UTC'),
    mitigated Nullable(DateTime64(9, 'UTC')),
    resolved Nullable(DateTime64(9, 'UTC')),
    reopened UInt32,
    jobs Array(String),
    gpus Array(String),
    cost_gpu_s Float64,
    document String CODEC(ZSTD(3))
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(opened)
ORDER BY (incident, revision)
SETTINGS non_replicated_deduplication_window = 10000;

-- The newest revision of every incident: what a dashboard asks for.
CREATE VIEW IF NOT EXISTS incidents AS
SELECT * FROM incident_revisions FINAL ORDER BY incident, revision DESC LIMIT 1 BY incident;

CREATE TABLE IF NOT EXISTS actions
(
    at DateTime64(9, 'UTC'),
    id FixedString(32),
    zone LowCardinality(String),
    incident FixedString(32),
    incident_revision UInt32,
    remedy LowCardinality(String),
    purpose LowCardinality(String),
    mode LowCardinality(String),
    dry_run Bool,
    target LowCardinality(String),
    subject String,
    reason String,
    document String CODEC(ZSTD(3))
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(at)
ORDER BY (incident, id)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS outcomes
(
    at DateTime64(9, 'UTC'),
    id FixedString(32),
    zone LowCardinality(String),
    action FixedString(32),
    incident FixedString(32),
    remedy LowCardinality(String),
    purpose LowCardinality(String),
    target LowCardinality(String),
    status LowCardinality(String),
    detail String CODEC(ZSTD(3)),
    attempts UInt64,
    started DateTime64(9, 'UTC'),
    document String CODEC(ZSTD(3))
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(at)
ORDER BY (incident, action, id)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS inventory
(
    at DateTime64(9, 'UTC'),
    subject String,
    schema LowCardinality(String),
    gone Bool,
    document String CODEC(ZSTD(3))
)
ENGINE = ReplacingMergeTree(at)
ORDER BY subject
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS deadletters
(
    at DateTime64(9, 'UTC'),
    id FixedString(32),
    topic LowCardinality(String),
    partition UInt64,
    offset UInt64,
    reader LowCardinality(String),
    reason String CODEC(ZSTD(3)),
    original_bytes UInt64,
    head String CODEC(ZSTD(3))
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(at)
ORDER BY (topic, partition, offset, id)
SETTINGS non_replicated_deduplication_window = 10000;
