-- What LinkPass tells: how paths fare (samples), and what became of them and of the routes (events).

CREATE TABLE IF NOT EXISTS path_health
(
    at DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    node LowCardinality(String),
    zone LowCardinality(String),
    path LowCardinality(String),
    peer LowCardinality(String),
    interface LowCardinality(String),
    alive Bool,
    in_use Bool,
    interval_ns UInt64 CODEC(T64, LZ4),
    heartbeats_expected UInt64 CODEC(T64, LZ4),
    heartbeats_heard UInt64 CODEC(T64, LZ4),
    rtt_p50_us UInt64 CODEC(T64, LZ4),
    rtt_max_us UInt64 CODEC(T64, LZ4),
    jitter_us UInt64 CODEC(T64, LZ4),
    timeout_us UInt64 CODEC(T64, LZ4),
    clock_error_ns UInt64 CODEC(T64, LZ4)
)
ENGINE = MergeTree
PARTITION BY toStartOfHour(at)
ORDER BY (node, path, at)
SETTINGS non_replicated_deduplication_window = 10000, ttl_only_drop_parts = 1;

CREATE TABLE IF NOT EXISTS path_transitions
(
    at DateTime64(9, 'UTC'),
    id FixedString(32),
    node LowCardinality(String),
    zone LowCardinality(String),
    subject String,
    peer LowCardinality(String),
    interface LowCardinality(String),
    peer_interface LowCardinality(String),
    alive Bool,
    fault LowCardinality(Nullable(String)),
    since DateTime64(9, 'UTC'),
    paths_alive UInt64,
    heartbeats_missed UInt64,
    clock_error_ns UInt64
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(at)
ORDER BY (node, subject, at, id)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS route_moves
(
    at DateTime64(9, 'UTC'),
    id FixedString(32),
    node LowCardinality(String),
    zone LowCardinality(String),
    subject String,
    peer LowCardinality(String),
    destination String,
    reason LowCardinality(String),
    from_path Nullable(String),
    to_path Nullable(String),
    dry_run Bool,
    failed DateTime64(9, 'UTC'),
    decided DateTime64(9, 'UTC'),
    clock_error_ns UInt64
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(at)
ORDER BY (node, subject, at, id)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS flow_stalls
(
    at DateTime64(9, 'UTC'),
    id FixedString(32),
    node LowCardinality(String),
    zone LowCardinality(String),
    subject String,
    peer LowCardinality(String),
    failed DateTime64(9, 'UTC'),
    flows UInt64,
    flows_recovered UInt64,
    stall_ns UInt64,
    sample Array(String),
    clock_error_ns UInt64
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(at)
ORDER BY (node, subject, at, id)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS heartbeats_refused
(
    at DateTime64(9, 'UTC'),
    id FixedString(32),
    node LowCardinality(String),
    zone LowCardinality(String),
    subject String,
    interface LowCardinality(String),
    from DateTime64(9, 'UTC'),
    malformed UInt64,
    forged UInt64,
    replayed UInt64,
    unprocessed UInt64,
    sources Array(String),
    clock_error_ns UInt64
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(at)
ORDER BY (node, subject, at, id)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS reflex_outcomes
(
    at DateTime64(9, 'UTC'),
    id FixedString(32),
    zone LowCardinality(String),
    remedy LowCardinality(String),
    purpose LowCardinality(String),
    target LowCardinality(String),
    subject String,
    status LowCardinality(String),
    detail String,
    started DateTime64(9, 'UTC'),
    clock_error_ns UInt64
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(at)
ORDER BY (target, subject, at, id)
SETTINGS non_replicated_deduplication_window = 10000;
