/*
 * The announcer inside a service: its address is announced by BGP only while the service itself says that it can serve.
 *
 * Link with -lstandfast, or with libstandfast.a -lpthread -ldl -lm. See docs/c-api.md and examples/gateway.c.
 *
 * Texts are UTF-8 and end with a zero; the library keeps none of them after the call. Every function that returns an int gives
 * STANDFAST_OK or a negative number. Nothing here ends the process, and no panic leaves the library. A standfast may be
 * used by any number of threads at the same time, but nobody may use it while it is freed or afterwards. A standfast_builder
 * belongs to one thread. After fork(2) only the parent may use what was there before.
 */

#ifndef STANDFAST_H
#define STANDFAST_H

/* Made from crates/capi/src/lib.rs by its test: GOLDEN=write cargo test -p standfast-capi. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// It was done.
#define STANDFAST_OK 0

// A pointer is NULL that must not be, a text is not UTF-8 or not what it must be, or the order of calls is wrong. Nothing has changed.
#define STANDFAST_INVALID -1

// There is no VIP of this name, or it has no bandwidth to share. Nothing has changed.
#define STANDFAST_REFUSED -2

// The announcer is over.
#define STANDFAST_OVER -3

// The library panicked, which is a bug of it, and went no further.
#define STANDFAST_PANICKED -4

// A VIP is told to nobody.
#define STANDFAST_WITHDRAWN 0

// A VIP is told to the peers.
#define STANDFAST_ANNOUNCED 1

// A VIP is still told, and asks for no new connections.
#define STANDFAST_DRAINING 2

// An event of interest when looking closely.
#define STANDFAST_DEBUG 0

// Something changed its state.
#define STANDFAST_INFO 1

// An operator may be woken.
#define STANDFAST_WARN 2

// A running announcer. From `standfast_start`.
typedef struct standfast standfast;

// What an announcer will be. From `standfast_builder_new`.
typedef struct standfast_builder standfast_builder;

// A connection or request that a drain waits for. From `standfast_connection_begin`.
typedef struct standfast_connection standfast_connection;

// Called for every event, with its level and one line of text that is gone afterwards; on the announcer's thread, so it must neither
// block nor call the library.
typedef void (*standfast_on_event)(void *context, int level, const char *text);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the library, such as "0.1.0".
const char *standfast_version(void);

// Begins the description of an announcer with this AS number. NULL if it panicked.
struct standfast_builder *standfast_builder_new(uint32_t asn);

// Frees a builder that was not given to `standfast_start`.
void standfast_builder_free(struct standfast_builder *builder);

// The BGP identifier, such as "192.0.2.11". Without it: the IPv4 local address.
int standfast_builder_router_id(struct standfast_builder *builder, const char *id);

// The source of the sessions, and next hop of the routes, of its family; at most one of each. Without it: the system's choice.
int standfast_builder_local_address(struct standfast_builder *builder,
                                    const char *address);

// Good samples in a row before a VIP is announced; default 5.
int standfast_builder_rise(struct standfast_builder *builder, uint32_t samples);

// Bad samples in a row before it is withdrawn; default 1.
int standfast_builder_fall(struct standfast_builder *builder, uint32_t samples);

// Milliseconds between two samples; default 1000.
int standfast_builder_interval(struct standfast_builder *builder, uint32_t millis);

// Milliseconds of silence that count as a bad report, so that a wedged service leaves by itself; default: never.
int standfast_builder_lease(struct standfast_builder *builder,
                            uint32_t millis);

// Whether a drain withdraws at once, instead of asking the routers with GRACEFUL_SHUTDOWN (RFC 8326); default: it asks.
int standfast_builder_drain_withdraws(struct standfast_builder *builder,
                                      bool withdraws);

// Calls `on_event` with `context` for every event, until the announcer is over.
int standfast_builder_on_event(struct standfast_builder *builder, standfast_on_event on_event, void *context);

// Adds a peer by its address, of this AS. What is said of a peer from here on concerns this one.
int standfast_builder_peer(struct standfast_builder *builder, const char *address, uint32_t asn);

// The peer's name in events; default: its address.
int standfast_builder_peer_name(struct standfast_builder *builder, const char *name);

// Its TCP port; default 179.
int standfast_builder_peer_port(struct standfast_builder *builder, uint16_t port);

// The interface of a link-local peer.
int standfast_builder_peer_interface(struct standfast_builder *builder, const char *interface);

// The key of TCP MD5 (RFC 2385); default: none.
int standfast_builder_peer_password(struct standfast_builder *builder, const char *password);

// The hold time that is offered, in seconds; default 9.
int standfast_builder_peer_hold_time(struct standfast_builder *builder, uint16_t seconds);

// The peer is more than one hop away, and packets to it have this hop limit, 2 to 255.
int standfast_builder_peer_multihop(struct standfast_builder *builder, uint8_t ttl);

// GTSM (RFC 5082): only packets that travelled at most this many hops are taken.
int standfast_builder_peer_ttl_security(struct standfast_builder *builder, uint8_t hops);

// Liveness by BFD: milliseconds between two packets, and how many may be missed.
int standfast_builder_peer_bfd(struct standfast_builder *builder,
                               uint32_t interval_millis,
                               uint8_t multiplier);

// Adds a VIP of this name. What is said of a VIP from here on concerns this one.
int standfast_builder_vip(struct standfast_builder *builder, const char *name);

// One more prefix of the VIP, such as "198.51.100.10/32". At least one.
int standfast_builder_vip_prefix(struct standfast_builder *builder, const char *prefix);

// Puts the VIP's addresses on this interface before they are announced, and takes them off afterwards. Needs CAP_NET_ADMIN.
int standfast_builder_vip_manage_address(struct standfast_builder *builder,
                                         const char *interface);

// One more community (RFC 1997), such as "64513:100".
int standfast_builder_vip_community(struct standfast_builder *builder, const char *community);

// One more large community (RFC 8092), such as "64513:1:100".
int standfast_builder_vip_large_community(struct standfast_builder *builder, const char *community);

// How often our AS is prepended beyond the once of eBGP.
int standfast_builder_vip_prepend(struct standfast_builder *builder, uint8_t times);

// MULTI_EXIT_DISC; the smaller is preferred.
int standfast_builder_vip_med(struct standfast_builder *builder, uint32_t med);

// LOCAL_PREF, for iBGP; the larger is preferred.
int standfast_builder_vip_local_pref(struct standfast_builder *builder, uint32_t local_pref);

// The link bandwidth, in bytes per second: what listeners weigh by, and what `standfast_share` is a share of.
int standfast_builder_vip_bandwidth(struct standfast_builder *builder, uint64_t bytes_per_second);

// Starts the announcer, and takes the builder whatever becomes of it. NULL if it cannot start: then `error` holds everything
// that is wrong and what to do about it, a line for each, cut to `size` octets with the zero at its end. 1024 are plenty.
struct standfast *standfast_start(struct standfast_builder *builder,
                                  char *error,
                                  uintptr_t size);

// Says how the service is, for every VIP; `reason`, why it is bad, may be NULL. Never blocks.
int standfast_report(const struct standfast *announcer, bool good, const char *reason);

// The same for one VIP.
int standfast_report_vip(const struct standfast *announcer, const char *vip, bool good, const char *reason);

// Asks for so much of the traffic that the VIPs' bandwidth stands for, 0 to 100 percent. Never blocks; STANDFAST_REFUSED if no VIP has a
// bandwidth.
int standfast_share(const struct standfast *announcer,
                    uint8_t percent);

// The same for one VIP.
int standfast_share_vip(const struct standfast *announcer, const char *vip, uint8_t percent);

// What a VIP is to its peers: STANDFAST_WITHDRAWN, STANDFAST_ANNOUNCED or STANDFAST_DRAINING; `vip` may be NULL for the first one. Why is
// written to `reason`, cut to `size` octets; it may be NULL. Waits for the announcer, a second at most.
int standfast_state(const struct standfast *announcer,
                    const char *vip,
                    char *reason,
                    uintptr_t size);

// Counts a connection or request that a drain is to wait for, until `standfast_connection_end`. NULL if the announcer is NULL.
struct standfast_connection *standfast_connection_begin(const struct standfast *announcer);

// Ends one, and frees it.
void standfast_connection_end(struct standfast_connection *connection);

// Begins to leave in order, and returns at once: asks the routers for no new connections, waits until those that are counted are over
// or `deadline_millis` have passed, withdraws and closes. `standfast_drain` waits for it.
int standfast_drain_begin(const struct standfast *announcer,
                          uint32_t deadline_millis);

// The same, and returns when it is over. `left`, which may be NULL, is how many connections were left at the deadline.
int standfast_drain(const struct standfast *announcer,
                    uint32_t deadline_millis,
                    uintptr_t *left);

// Whether a drain was ordered: take no more work. False if the announcer is NULL.
bool standfast_is_draining(const struct standfast *announcer);

// Withdraws everything at once, tells the peers why, and closes, within about three seconds; `why` may be NULL.
int standfast_stop(const struct standfast *announcer,
                   const char *why);

// Stops the announcer if it runs, and frees it.
void standfast_free(struct standfast *announcer);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* STANDFAST_H */
