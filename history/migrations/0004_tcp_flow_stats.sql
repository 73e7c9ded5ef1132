-- What an eBPF program tells of TCP flows. Histograms are added up by sumMap(rtt_bucket_us, rtt_samples).

CREATE TABLE IF NOT EXISTS tcp_flow_stats
(
    at DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    node LowCardinality(String),
    zone LowCardinality(String),
    local String CODEC(ZSTD(1)),
    remote String CODEC(ZSTD(1)),
    cgroup LowCardinality(String),
    job LowCardinality(String),
    complete Bool,
    closed Bool,
    interval_ns UInt64 CODEC(T64, LZ4),
    rtt_us UInt64 CODEC(T64, LZ4),
    rtt_min_us UInt64 CODEC(T64, LZ4),
    rtt_p50_us UInt64 CODEC(T64, LZ4),
    rtt_p99_us UInt64 CODEC(T64, LZ4),
    rtt_max_us UInt64 CODEC(T64, LZ4),
    rtt_bucket_us Array(UInt64) CODEC(T64, LZ4),
    rtt_samples Array(UInt64) CODEC(T64, LZ4),
    cwnd_segments UInt64 CODEC(T64, LZ4),
    segments_sent UInt64 CODEC(T64, LZ4),
    segments_retransmitted UInt64 CODEC(T64, LZ4),
    loss_episodes UInt64 CODEC(T64, LZ4),
    timeouts UInt64 CODEC(T64, LZ4),
    bytes_sent UInt64 CODEC(T64, LZ4),
    bytes_received UInt64 CODEC(T64, LZ4),
    delivery_rate_bytes_per_s UInt64 CODEC(T64, LZ4),
    clock_error_ns UInt64 CODEC(T64, LZ4)
)
ENGINE = MergeTree
PARTITION BY toStartOfHour(at)
ORDER BY (node, at, remote, local)
SETTINGS non_replicated_deduplication_window = 10000, ttl_only_drop_parts = 1;
