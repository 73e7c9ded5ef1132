// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* What the kernel sums for every TCP flow, in one record a socket that lives and dies with it:
 *
 *   watch   on the cgroup: a flow begins, has a round-trip sample, sends again, times out, ends
 *   visit   over the sockets of a network namespace, once an interval: takes in flows that were there
 *           before, brings every record up to date and writes it out
 *
 * Both run under the socket's lock. Fields of the kernel's own types are relocated when it is loaded
 * (CO-RE); all else is stable interface. Needs Linux 5.15. Built by build.sh.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#define AF_INET 2
#define TCP_CLOSE 7
#define TCP_ESTABLISHED 1
#define SOL_TCP 6
#define TCP_BPF_SOCK_OPS_CB_FLAGS 1008
#define ARG_STATE_NEW 1

#define CALLBACKS (BPF_SOCK_OPS_RTT_CB_FLAG | BPF_SOCK_OPS_RETRANS_CB_FLAG | \
		   BPF_SOCK_OPS_RTO_CB_FLAG | BPF_SOCK_OPS_STATE_CB_FLAG)

/* Eight buckets an octave: 0, 1, 2 … 15, 16, 18, 20 … 30, 32, 36 … µs; the last is open. */
#define BUCKETS 176
#define CLOSED_BYTES (1 << 20)

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct kernfs_node {
	u64 id;
};
struct cgroup {
	struct kernfs_node *kn;
};
struct sock_cgroup_data {
	struct cgroup *cgroup;
};
struct in6_addr {
	union {
		u32 u6_addr32[4];
	} in6_u;
};
struct sock_common {
	u32 skc_daddr;
	u32 skc_rcv_saddr;
	u16 skc_dport;
	u16 skc_num;
	u16 skc_family;
	u8 skc_state;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};
struct sock {
	struct sock_common __sk_common;
	struct sock_cgroup_data sk_cgrp_data;
};
struct inet_sock {
	struct sock sk;
};
struct inet_connection_sock {
	struct inet_sock icsk_inet;
};
struct tcp_sock {
	struct inet_connection_sock inet_conn;
	u64 bytes_acked;
	u64 bytes_received;
	u32 srtt_us;
	u32 snd_cwnd;
	u32 segs_out;
	u32 total_retrans;
	u32 mss_cache;
	u32 rate_delivered;
	u32 rate_interval_us;
};
struct seq_file;
struct bpf_iter_meta {
	struct seq_file *seq;
};
struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
};
#pragma clang attribute pop

/* Read by record.py. Counts are totals: of the histogram, the episodes and the timeouts since the flow
 * was taken in, of all else since it was established. */
struct record {
	u64 cookie;
	u64 cgroup;
	u64 bytes_acked;
	u64 bytes_received;
	u64 delivery_rate; /* bytes/s */
	u32 segments_sent;
	u32 segments_retransmitted;
	u32 rtt_us;
	u32 cwnd;
	u32 rtt_min_us; /* of the samples since the last visit; above the greatest where there is none */
	u32 rtt_max_us;
	u32 loss_episodes;
	u32 timeouts;
	u32 local[4];
	u32 remote[4];
	u16 local_port;	 /* host order */
	u16 remote_port; /* network order */
	u8 family;
	u8 closed;
	u8 adopted;   /* it was there before it was watched */
	u8 callbacks; /* `watch` hears of it */
	u32 lossy;    /* inside of an episode, which ends when all before `recover` is acknowledged */
	u32 recover;
	u32 rtt[BUCKETS];
};

extern int LINUX_KERNEL_VERSION __kconfig;

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct record);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, CLOSED_BYTES);
} closed SEC(".maps");

struct settings {
	u64 namespace_cookie; /* only flows of this network namespace; 0 for all */
	u64 closed_dropped;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct settings);
} settings SEC(".maps");

static __always_inline u32 bucket(u32 us)
{
	u32 octave = 3, rest;

	if (us < 8)
		return us;
	rest = us >> 4;
#pragma unroll
	for (int i = 0; i < 20; i++)
		if (rest >> i)
			octave = i + 4;
	return (octave - 2) * 8 + ((us >> (octave - 3)) & 7);
}

static __always_inline void begin(struct record *r, struct tcp_sock *tp, u64 cookie)
{
	struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	struct sock_common *common = &sk->__sk_common;
	struct cgroup *cgroup;

	r->cookie = cookie;
	r->rtt_min_us = ~0u;
	r->family = common->skc_family;
	r->local_port = common->skc_num;
	r->remote_port = common->skc_dport;
	if (r->family == AF_INET) {
		r->local[0] = common->skc_rcv_saddr;
		r->remote[0] = common->skc_daddr;
	} else {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			r->local[i] = common->skc_v6_rcv_saddr.in6_u.u6_addr32[i];
			r->remote[i] = common->skc_v6_daddr.in6_u.u6_addr32[i];
		}
	}
	if (bpf_core_field_exists(sk->sk_cgrp_data.cgroup)) {
		cgroup = sk->sk_cgrp_data.cgroup;
		if (cgroup)
			r->cgroup = cgroup->kn->id;
	}
}

static __always_inline void refresh(struct record *r, struct tcp_sock *tp)
{
	u64 interval_us = tp->rate_interval_us;

	r->bytes_acked = tp->bytes_acked;
	r->bytes_received = tp->bytes_received;
	r->segments_sent = tp->segs_out;
	r->segments_retransmitted = tp->total_retrans;
	r->rtt_us = tp->srtt_us >> 3;
	r->cwnd = tp->snd_cwnd;
	if (interval_us)
		r->delivery_rate = (u64)tp->rate_delivered * tp->mss_cache * 1000000 / interval_us;
}

static __always_inline void established(struct bpf_sock_ops *ctx)
{
	u32 zero = 0;
	struct settings *wanted = bpf_map_lookup_elem(&settings, &zero);
	struct bpf_sock *sk = ctx->sk;
	struct tcp_sock *tp;
	struct record *r;

	if (!sk || !wanted)
		return;
	if (wanted->namespace_cookie && wanted->namespace_cookie != bpf_get_netns_cookie(ctx))
		return;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return;
	r = bpf_sk_storage_get(&flows, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!r)
		return;
	begin(r, tp, bpf_get_socket_cookie(ctx));
	r->callbacks = 1;
	bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | CALLBACKS);
}

static __always_inline void rtt(struct record *r, struct bpf_sock_ops *ctx)
{
	/* Kernels before 6.10 hand over no sample; their smoothed time stands for it. */
	u32 us = ctx->args[0] ? ctx->args[0] : ctx->srtt_us >> 3;
	u32 at = bucket(us);

	if (at >= BUCKETS)
		at = BUCKETS - 1;
	r->rtt[at]++;
	if (us < r->rtt_min_us)
		r->rtt_min_us = us;
	if (us > r->rtt_max_us)
		r->rtt_max_us = us;
}

static __always_inline void sent_again(struct record *r, struct bpf_sock_ops *ctx)
{
	if (r->lossy && (__s32)(ctx->snd_una - r->recover) < 0)
		return;
	r->lossy = 1;
	r->recover = ctx->snd_nxt;
	r->loss_episodes++;
}

static __always_inline void ended(struct record *r, struct bpf_sock *sk)
{
	u32 zero = 0;
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);
	struct settings *counts;

	if (!tp || r->closed)
		return;
	refresh(r, tp);
	r->closed = 1;
	if (bpf_ringbuf_output(&closed, r, sizeof(*r), 0) == 0)
		return;
	counts = bpf_map_lookup_elem(&settings, &zero);
	if (counts)
		__sync_fetch_and_add(&counts->closed_dropped, 1);
}

/* The reply stays as it is: programs of inner cgroups may have answered already. */
SEC("sockops")
int watch(struct bpf_sock_ops *ctx)
{
	u32 op = ctx->op;
	struct bpf_sock *sk;
	struct record *r;

	if (op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB || op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB) {
		established(ctx);
		return 1;
	}
	if (op != BPF_SOCK_OPS_RTT_CB && op != BPF_SOCK_OPS_RETRANS_CB &&
	    op != BPF_SOCK_OPS_RTO_CB && op != BPF_SOCK_OPS_STATE_CB)
		return 1;
	sk = ctx->sk;
	if (!sk)
		return 1;
	r = bpf_sk_storage_get(&flows, sk, 0, 0);
	if (!r)
		return 1;
	if (op == BPF_SOCK_OPS_RTT_CB)
		rtt(r, ctx);
	else if (op == BPF_SOCK_OPS_RETRANS_CB)
		sent_again(r, ctx);
	else if (op == BPF_SOCK_OPS_RTO_CB)
		r->timeouts++;
	else if (ctx->args[ARG_STATE_NEW] == TCP_CLOSE)
		ended(r, sk);
	return 1;
}

static __always_inline struct record *adopted(struct tcp_sock *tp)
{
	struct record *r = bpf_sk_storage_get(&flows, tp, 0, BPF_SK_STORAGE_GET_F_CREATE);
	int flags = 0;

	if (!r)
		return r;
	begin(r, tp, bpf_get_socket_cookie(tp));
	r->adopted = 1;
	/* Older kernels cannot have a flow called back that was there already: it is read once an
	 * interval and no more. */
	if (LINUX_KERNEL_VERSION < KERNEL_VERSION(6, 12, 0) ||
	    bpf_getsockopt(tp, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &flags, sizeof(flags)))
		return r;
	flags |= CALLBACKS;
	if (bpf_setsockopt(tp, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &flags, sizeof(flags)) == 0)
		r->callbacks = 1;
	return r;
}

SEC("iter/tcp")
int visit(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	struct tcp_sock *tp;
	struct record *r;

	if (!common)
		return 0;
	tp = bpf_skc_to_tcp_sock(common);
	if (!tp)
		return 0;
	r = bpf_sk_storage_get(&flows, tp, 0, 0);
	if (!r && common->skc_state == TCP_ESTABLISHED)
		r = adopted(tp);
	if (!r || r->closed)
		return 0;
	refresh(r, tp);
	/* Where the page is full the kernel comes back to this socket with a new one. */
	if (bpf_seq_write(ctx->meta->seq, r, sizeof(*r)))
		return 0;
	r->rtt_min_us = ~0u;
	r->rtt_max_us = 0;
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
