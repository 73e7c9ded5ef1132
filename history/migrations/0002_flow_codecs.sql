-- LZ4 behind T64: what is left of these counters when T64 has packed their bits hardly compresses, and ZSTD cost a third of an insert and of every merge for it.

ALTER TABLE tcp_flows
    MODIFY COLUMN interval_ns CODEC(T64, LZ4),
    MODIFY COLUMN rtt_us CODEC(T64, LZ4),
    MODIFY COLUMN cwnd_segments CODEC(T64, LZ4),
    MODIFY COLUMN segments_sent CODEC(T64, LZ4),
    MODIFY COLUMN segments_retransmitted CODEC(T64, LZ4),
    MODIFY COLUMN bytes_sent CODEC(T64, LZ4),
    MODIFY COLUMN bytes_received CODEC(T64, LZ4),
    MODIFY COLUMN delivery_rate_bytes_per_s CODEC(T64, LZ4),
    MODIFY COLUMN clock_error_ns CODEC(T64, LZ4);
