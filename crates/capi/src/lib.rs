//! The announcer of the crate `standfast` for C, and for whatever calls C.
//!
//! Nothing is decided here: each function checks its pointers, and hands on. `include/standfast.h` is made from this file by a
//! test, and its comments are these. No panic leaves a function, and there is no global state: errors are written where the
//! caller wants them.
//!
//! What every `unsafe` function asks of its caller, as the header's head says it: a pointer is NULL, or came from the function that its
//! type names and was not freed; a text is NULL, or ends with a zero; a buffer has room for `size` octets.

#![allow(clippy::missing_safety_doc, reason = "it is the same for all of them, and told above")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::net::{IpAddr, Ipv4Addr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use announcer::{
    Announcer, Builder, Connection, DrainMode, Event, Level, Peer, Verdict, Vip, VipHandle, VipState,
};

/// It was done.
pub const STANDFAST_OK: c_int = 0;
/// A pointer is NULL that must not be, a text is not UTF-8 or not what it must be, or the order of calls is wrong. Nothing has changed.
pub const STANDFAST_INVALID: c_int = -1;
/// There is no VIP of this name, or it has no bandwidth to share. Nothing has changed.
pub const STANDFAST_REFUSED: c_int = -2;
/// The announcer is over.
pub const STANDFAST_OVER: c_int = -3;
/// The library panicked, which is a bug of it, and went no further.
pub const STANDFAST_PANICKED: c_int = -4;

/// A VIP is told to nobody.
pub const STANDFAST_WITHDRAWN: c_int = 0;
/// A VIP is told to the peers.
pub const STANDFAST_ANNOUNCED: c_int = 1;
/// A VIP is still told, and asks for no new connections.
pub const STANDFAST_DRAINING: c_int = 2;

/// An event of interest when looking closely.
pub const STANDFAST_DEBUG: c_int = 0;
/// Something changed its state.
pub const STANDFAST_INFO: c_int = 1;
/// An operator may be woken.
pub const STANDFAST_WARN: c_int = 2;

/// What an announcer will be. From `standfast_builder_new`.
#[allow(non_camel_case_types, reason = "it is named as C names things")]
pub struct standfast_builder {
    builder: Builder,
    /// The one that is being described.
    peer: Option<Peer>,
    vip: Option<Vip>,
}

/// A running announcer. From `standfast_start`.
#[allow(non_camel_case_types, reason = "it is named as C names things")]
pub struct standfast(Announcer);

/// A connection or request that a drain waits for. From `standfast_connection_begin`.
#[allow(non_camel_case_types, reason = "it is named as C names things")]
pub struct standfast_connection {
    /// It counts until it is dropped.
    _connection: Connection,
}

/// Called for every event, with its level and one line of text that is gone afterwards; on the announcer's thread, so it must neither
/// block nor call the library.
#[allow(non_camel_case_types, reason = "it is named as C names things")]
pub type standfast_on_event =
    Option<unsafe extern "C" fn(context: *mut c_void, level: c_int, text: *const c_char)>;

/// The version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn standfast_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

// --- what it will be ---

/// Begins the description of an announcer with this AS number. NULL if it panicked.
#[unsafe(no_mangle)]
pub extern "C" fn standfast_builder_new(asn: u32) -> *mut standfast_builder {
    let make = || {
        let builder = Announcer::builder().asn(asn);
        Box::into_raw(Box::new(standfast_builder { builder, peer: None, vip: None }))
    };
    catch_unwind(make).unwrap_or(std::ptr::null_mut())
}

/// Frees a builder that was not given to `standfast_start`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_builder_free(builder: *mut standfast_builder) {
    // SAFETY: see the head of this file.
    unsafe { free(builder) }
}

/// The BGP identifier, such as "192.0.2.11". Without it: the IPv4 local address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_builder_router_id(
    builder: *mut standfast_builder,
    id: *const c_char,
) -> c_int {
    // SAFETY: see the head of this file.
    unsafe {
        said(builder, id, |b, id| {
            let id: Ipv4Addr = id.parse().ok()?;
            b.change(|builder| builder.router_id(id))
        })
    }
}

/// The source of the sessions, and next hop of the routes, of its family; at most one of each. Without it: the system's choice.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_builder_local_address(
    builder: *mut standfast_builder,
    address: *const c_char,
) -> c_int {
    // SAFETY: see the head of this file.
    unsafe {
        said(builder, address, |b, address| {
            let address: IpAddr = address.parse().ok()?;
            b.change(|builder| builder.local_address(address))
        })
    }
}

/// Good samples in a row before a VIP is announced; default 5.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_builder_rise(builder: *mut standfast_builder, samples: u32) -> c_int {
    // SAFETY: see the head of this file.
    unsafe { building(builder, |b| b.change(|builder| builder.rise(samples))) }
}

/// Bad samples in a row before it is withdrawn; default 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_builder_fall(builder: *mut standfast_builder, samples: u32) -> c_int {
    // SAFETY: see the head of this file.
    unsafe { building(builder, |b| b.change(|builder| builder.fall(samples))) }
}

/// Milliseconds between two samples; default 1000.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_builder_interval(builder: *mut standfast_builder, millis: u32) -> c_int {
    // SAFETY: see the head of this file.
    unsafe { building(builder, |b| b.change(|builder| builder.interval(ms(millis)))) }
}

/// Milliseconds of silence that count as a bad report, so that a wedged service leaves by itself; default: never.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_builder_lease(builder: *mut standfast_builder, millis: u32) -> c_int {
    // SAFETY: see the head of this file.
    unsafe { building(builder, |b| b.change(|builder| builder.lease(ms(millis)))) }
}

/// Whether a drain withdraws at once, instead of asking the routers with GRACEFUL_SHUTDOWN (RFC 8326); default: it asks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_builder_drain_withdraws(
    builder: *mut standfast_builder,
    withdraws: bool,
) -> c_int {
    let mode = if withdraws { DrainMode::Withdraw } else { DrainMode::GracefulShutdown };
    // SAFETY: see the head of this file.
    unsafe { building(builder, |b| b.change(|builder| builder.drain_mode(mode))) }
}

/// Calls `on_event` with `context` for every event, until the announcer is over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_builder_on_event(
    builder: *mut standfast_builder,
    on_event: standfast_on_event,
    context: *mut c_void,
) -> c_int {
    let Some(call) = on_event else { return STANDFAST_INVALID };
    let context = Context(context);
    let tell = move |event: &Event| {
        // The whole wrapper moves in, and not the pointer alone.
        let context = &context;
        let level = match event.level() {
            Level::Debug => STANDFAST_DEBUG,
            Level::Warn => STANDFAST_WARN,
            _ => STANDFAST_INFO,
        };
        // What holds a zero is cut there.
        let text = event.to_string();
        let text = CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default();
        // SAFETY: the caller of the builder gave both, for as long as the announcer runs; `text` lives for the call.
        unsafe { call(context.0, level, text.as_ptr()) };
    };
    // SAFETY: see the head of this file.
    unsafe { building(builder, |b| b.change(|builder| builder.on_event(tell))) }
}

/// Adds a peer by its address, of this AS. What is said of a peer from here on concerns this one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_builder_peer(
    builder: *mut standfast_builder,
    address: *const c_char,
    asn: u32,
) -> c_int {
    // SAFETY: see the head of this file.
    unsafe {
        said(builder, address, |b, address| {
            b.flush()?;
            b.peer = Some(Peer::new(address, asn));
            Some(())
        })
    }
}

/// The peer's name in events; default: its address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_builder_peer_name(
    builder: *mut standfast_builder,
    name: *const c_char,
) -> c_int {
    // SAFETY: see the head of this file.
    unsafe { said(builder, name, |b, name| b.peer(|peer| peer.name(name))) }
}

/// Its TCP port; default 179.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_builder_peer_port(builder: *mut standfast_builder, port: u16) -> c_int {
    // SAFETY: see the head of this file.
    unsafe { building(builder, |b| b.peer(|peer| peer.port(port))) }
}

/// The interface of a link-local peer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_builder_peer_interface(
    builder: *mut standfast_builder,
    interface: *const c_char,
) -> c_int {
    // SAFETY: see the head of this file.
    unsafe { said(builder, interface, |b, interface| b.peer(|peer| peer.interface(interface))) }
}

/// The key of TCP MD5 (RFC 2385); default: none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_builder_peer_password(
    builder: *mut standfast_builder,
    password: *const c_char,
) -> c_int {
    // SAFETY: see the head of this file.
    unsafe { said(builder, password, |b, password| b.peer(|peer| peer.password(password))) }
}

/// The hold time that is offered, in seconds; default 9.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_builder_peer_hold_time(
    builder: *mut standfast_builder,
    seconds: u16,
) -> c_int {
    // SAFETY: see the head of this file.
    unsafe { building(builder, |b| b.peer(|peer| peer.hold_time(Duration::from_secs(seconds.into())))) }
}

/// The peer is more than one hop away, and packets to it have this hop limit, 2 to 255.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_builder_peer_multihop(builder: *mut standfast_builder, ttl: u8) -> c_int {
    // SAFETY: see the head of this file.
    unsafe { building(builder, |b| b.peer(|peer| peer.multihop(ttl))) }
}

/// GTSM (RFC 5082): only packets that travelled at most this many hops are taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_builder_peer_ttl_security(
    builder: *mut standfast_builder,
    hops: u8,
) -> c_int {
    // SAFETY: see the head of this file.
    unsafe { building(builder, |b| b.peer(|peer| peer.ttl_security(hops))) }
}

/// Liveness by BFD: milliseconds between two packets, and how many may be missed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_builder_peer_bfd(
    builder: *mut standfast_builder,
    interval_millis: u32,
    multiplier: u8,
) -> c_int {
    // SAFETY: see the head of this file.
    unsafe { building(builder, |b| b.peer(|peer| peer.bfd(ms(interval_millis), multiplier))) }
}

/// Adds a VIP of this name. What is said of a VIP from here on concerns this one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_builder_vip(
    builder: *mut standfast_builder,
    name: *const c_char,
) -> c_int {
    // SAFETY: see the head of this file.
    unsafe {
        said(builder, name, |b, name| {
            b.flush()?;
            b.vip = Some(Vip::new(name));
            Some(())
        })
    }
}

/// One more prefix of the VIP, such as "198.51.100.10/32". At least one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_builder_vip_prefix(
    builder: *mut standfast_builder,
    prefix: *const c_char,
) -> c_int {
    // SAFETY: see the head of this file.
    unsafe { said(builder, prefix, |b, prefix| b.vip(|vip| vip.prefix(prefix))) }
}

/// Puts the VIP's addresses on this interface before they are announced, and takes them off afterwards. Needs CAP_NET_ADMIN.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_builder_vip_manage_address(
    builder: *mut standfast_builder,
    interface: *const c_char,
) -> c_int {
    // SAFETY: see the head of this file.
    unsafe { said(builder, interface, |b, interface| b.vip(|vip| vip.manage_address(interface))) }
}

/// One more community (RFC 1997), such as "64513:100".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_builder_vip_community(
    builder: *mut standfast_builder,
    community: *const c_char,
) -> c_int {
    // SAFETY: see the head of this file.
    unsafe { said(builder, community, |b, community| b.vip(|vip| vip.community(community))) }
}

/// One more large community (RFC 8092), such as "64513:1:100".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_builder_vip_large_community(
    builder: *mut standfast_builder,
    community: *const c_char,
) -> c_int {
    // SAFETY: see the head of this file.
    unsafe { said(builder, community, |b, community| b.vip(|vip| vip.large_community(community))) }
}

/// How often our AS is prepended beyond the once of eBGP.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_builder_vip_prepend(builder: *mut standfast_builder, times: u8) -> c_int {
    // SAFETY: see the head of this file.
    unsafe { building(builder, |b| b.vip(|vip| vip.prepend(times))) }
}

/// MULTI_EXIT_DISC; the smaller is preferred.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_builder_vip_med(builder: *mut standfast_builder, med: u32) -> c_int {
    // SAFETY: see the head of this file.
    unsafe { building(builder, |b| b.vip(|vip| vip.med(med))) }
}

/// LOCAL_PREF, for iBGP; the larger is preferred.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_builder_vip_local_pref(
    builder: *mut standfast_builder,
    local_pref: u32,
) -> c_int {
    // SAFETY: see the head of this file.
    unsafe { building(builder, |b| b.vip(|vip| vip.local_pref(local_pref))) }
}

/// The link bandwidth, in bytes per second: what listeners weigh by, and what `standfast_share` is a share of.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_builder_vip_bandwidth(
    builder: *mut standfast_builder,
    bytes_per_second: u64,
) -> c_int {
    // SAFETY: see the head of this file.
    unsafe { building(builder, |b| b.vip(|vip| vip.bandwidth(bytes_per_second))) }
}

// --- what runs ---

/// Starts the announcer, and takes the builder whatever becomes of it. NULL if it cannot start: then `error` holds everything
/// that is wrong and what to do about it, a line for each, cut to `size` octets with the zero at its end. 1024 are plenty.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_start(
    builder: *mut standfast_builder,
    error: *mut c_char,
    size: usize,
) -> *mut standfast {
    let refuse = |why: &str| {
        // SAFETY: see the head of this file.
        unsafe { write(why, error, size) };
        std::ptr::null_mut()
    };
    if builder.is_null() {
        return refuse("there is no builder");
    }
    // SAFETY: it came from `Box::into_raw`, and the caller gives it away.
    let mut builder = *unsafe { Box::from_raw(builder) };
    let start = move || {
        builder.flush();
        builder.builder.start().map(|announcer| Box::into_raw(Box::new(standfast(announcer))))
    };
    match catch_unwind(AssertUnwindSafe(start)) {
        Ok(Ok(started)) => started,
        Ok(Err(why)) => refuse(&why.to_string()),
        Err(_) => refuse("the library panicked"),
    }
}

/// Says how the service is, for every VIP; `reason`, why it is bad, may be NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_report(
    announcer: *const standfast,
    good: bool,
    reason: *const c_char,
) -> c_int {
    // SAFETY: see the head of this file.
    unsafe {
        running(announcer, |announcer| {
            let Some(verdict) = verdict(good, reason) else { return STANDFAST_INVALID };
            announcer.report(verdict);
            STANDFAST_OK
        })
    }
}

/// The same for one VIP.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_report_vip(
    announcer: *const standfast,
    vip: *const c_char,
    good: bool,
    reason: *const c_char,
) -> c_int {
    // SAFETY: see the head of this file.
    unsafe {
        of_vip(announcer, vip, |vip| {
            let Some(verdict) = verdict(good, reason) else { return STANDFAST_INVALID };
            vip.report(verdict);
            STANDFAST_OK
        })
    }
}

/// Asks for so much of the traffic that the VIPs' bandwidth stands for, 0 to 100 percent. Never blocks; STANDFAST_REFUSED if no VIP has a
/// bandwidth.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_share(announcer: *const standfast, percent: u8) -> c_int {
    // SAFETY: see the head of this file.
    unsafe {
        running(announcer, |announcer| announcer.share(percent).map_or(STANDFAST_REFUSED, |()| STANDFAST_OK))
    }
}

/// The same for one VIP.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_share_vip(
    announcer: *const standfast,
    vip: *const c_char,
    percent: u8,
) -> c_int {
    // SAFETY: see the head of this file.
    unsafe { of_vip(announcer, vip, |vip| vip.share(percent).map_or(STANDFAST_REFUSED, |()| STANDFAST_OK)) }
}

/// What a VIP is to its peers: STANDFAST_WITHDRAWN, STANDFAST_ANNOUNCED or STANDFAST_DRAINING; `vip` may be NULL for the first one. Why is
/// written to `reason`, cut to `size` octets; it may be NULL. Waits for the announcer, a second at most.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_state(
    announcer: *const standfast,
    vip: *const c_char,
    reason: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: see the head of this file.
    unsafe {
        running(announcer, |announcer| {
            let name = match text(vip) {
                _ if vip.is_null() => None,
                Some(name) => Some(name),
                None => return STANDFAST_INVALID,
            };
            let Some(state) = announcer.state() else { return STANDFAST_OVER };
            let found = state.vips.iter().find(|vip| name.is_none_or(|name| vip.name == name));
            let Some(vip) = found else { return STANDFAST_REFUSED };
            write(&vip.reason, reason, size);
            match vip.state {
                VipState::Announced => STANDFAST_ANNOUNCED,
                VipState::Draining => STANDFAST_DRAINING,
                _ => STANDFAST_WITHDRAWN,
            }
        })
    }
}

/// Counts a connection or request that a drain is to wait for, until `standfast_connection_end`. NULL if the announcer is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_connection_begin(
    announcer: *const standfast,
) -> *mut standfast_connection {
    // SAFETY: see the head of this file.
    let Some(standfast(announcer)) = (unsafe { announcer.as_ref() }) else { return std::ptr::null_mut() };
    let begin = || Box::into_raw(Box::new(standfast_connection { _connection: announcer.connection() }));
    catch_unwind(AssertUnwindSafe(begin)).unwrap_or(std::ptr::null_mut())
}

/// Ends one, and frees it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_connection_end(connection: *mut standfast_connection) {
    // SAFETY: see the head of this file.
    unsafe { free(connection) }
}

/// Begins to leave in order, and returns at once: asks the routers for no new connections, waits until those that are counted are over
/// or `deadline_millis` have passed, withdraws and closes. `standfast_drain` waits for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_drain_begin(announcer: *const standfast, deadline_millis: u32) -> c_int {
    // SAFETY: see the head of this file.
    unsafe {
        running(announcer, |announcer| {
            drop(announcer.drain(ms(deadline_millis)));
            STANDFAST_OK
        })
    }
}

/// The same, and returns when it is over. `left`, which may be NULL, is how many connections were left at the deadline.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_drain(
    announcer: *const standfast,
    deadline_millis: u32,
    left: *mut usize,
) -> c_int {
    // SAFETY: see the head of this file.
    unsafe {
        running(announcer, |announcer| {
            let drained = announcer.drain(ms(deadline_millis)).wait();
            if let Some(left) = left.as_mut() {
                *left = drained.left;
            }
            STANDFAST_OK
        })
    }
}

/// Whether a drain was ordered: take no more work. False if the announcer is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_is_draining(announcer: *const standfast) -> bool {
    // SAFETY: see the head of this file.
    unsafe { running(announcer, |announcer| announcer.is_draining().into()) == 1 }
}

/// Withdraws everything at once, tells the peers why, and closes, within about three seconds; `why` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_stop(announcer: *const standfast, why: *const c_char) -> c_int {
    // SAFETY: see the head of this file.
    unsafe {
        running(announcer, |announcer| {
            announcer.stop(text(why).unwrap_or("the service ended"));
            STANDFAST_OK
        })
    }
}

/// Stops the announcer if it runs, and frees it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standfast_free(announcer: *mut standfast) {
    // SAFETY: see the head of this file.
    unsafe { free(announcer) }
}

// --- behind them ---

impl standfast_builder {
    fn change(&mut self, change: impl FnOnce(Builder) -> Builder) -> Option<()> {
        let builder = std::mem::replace(&mut self.builder, Announcer::builder());
        self.builder = change(builder);
        Some(())
    }

    fn peer(&mut self, change: impl FnOnce(Peer) -> Peer) -> Option<()> {
        self.peer = Some(change(self.peer.take()?));
        Some(())
    }

    fn vip(&mut self, change: impl FnOnce(Vip) -> Vip) -> Option<()> {
        self.vip = Some(change(self.vip.take()?));
        Some(())
    }

    /// What was being described is complete.
    fn flush(&mut self) -> Option<()> {
        if let Some(peer) = self.peer.take() {
            self.change(|builder| builder.peer(peer))?;
        }
        match self.vip.take() {
            Some(vip) => self.change(|builder| builder.vip(vip)),
            None => Some(()),
        }
    }
}

/// What the caller of `standfast_builder_on_event` wants to have back.
struct Context(*mut c_void);

// SAFETY: the pointer is never followed here; who gave it away is told that another thread gives it back.
unsafe impl Send for Context {}

fn ms(millis: u32) -> Duration {
    Duration::from_millis(millis.into())
}

/// The text at a pointer; `None` if there is none, or it is not UTF-8.
///
/// # Safety
/// It is NULL, or ends with a zero and outlives `'a`.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

/// # Safety
/// As of [`text`].
unsafe fn verdict<'a>(good: bool, reason: *const c_char) -> Option<Verdict<'a>> {
    if good || reason.is_null() {
        return Some(good.into());
    }
    // SAFETY: as the caller says.
    unsafe { text(reason) }.map(Verdict::bad)
}

/// Writes a text and its end, cut between two characters to what there is room for.
///
/// # Safety
/// `to` is NULL, or has room for `size` octets.
unsafe fn write(text: &str, to: *mut c_char, size: usize) {
    if to.is_null() || size == 0 {
        return;
    }
    let text = &text[..text.floor_char_boundary(size - 1)];
    // SAFETY: the text and its end fit, and nobody else knows the caller's buffer during the call.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len());
        to.add(text.len()).write(0);
    }
}

/// Works on a builder.
///
/// # Safety
/// It is NULL, or from [`standfast_builder_new`] and nobody else's at this moment.
unsafe fn building(
    builder: *mut standfast_builder,
    work: impl FnOnce(&mut standfast_builder) -> Option<()>,
) -> c_int {
    // SAFETY: as the caller says.
    let Some(builder) = (unsafe { builder.as_mut() }) else { return STANDFAST_INVALID };
    caught(|| work(builder).map_or(STANDFAST_INVALID, |()| STANDFAST_OK))
}

/// The same with a text.
///
/// # Safety
/// As of [`building`] and [`text`].
unsafe fn said(
    builder: *mut standfast_builder,
    words: *const c_char,
    work: impl FnOnce(&mut standfast_builder, &str) -> Option<()>,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        let Some(words) = text(words) else { return STANDFAST_INVALID };
        building(builder, |builder| work(builder, words))
    }
}

/// Works on an announcer.
///
/// # Safety
/// It is NULL, or from [`standfast_start`] and not freed before this returns.
unsafe fn running(announcer: *const standfast, work: impl FnOnce(&Announcer) -> c_int) -> c_int {
    // SAFETY: as the caller says.
    match unsafe { announcer.as_ref() } {
        Some(standfast(announcer)) => caught(|| work(announcer)),
        None => STANDFAST_INVALID,
    }
}

/// The same with one of its VIPs.
///
/// # Safety
/// As of [`running`] and [`text`].
unsafe fn of_vip(
    announcer: *const standfast,
    vip: *const c_char,
    work: impl FnOnce(&VipHandle) -> c_int,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        running(announcer, |announcer| match text(vip) {
            Some(name) => announcer.vip(name).map_or(STANDFAST_REFUSED, |vip| work(&vip)),
            None => STANDFAST_INVALID,
        })
    }
}

/// # Safety
/// It is NULL, or came from `Box::into_raw` and ends here.
unsafe fn free<T>(thing: *mut T) {
    if !thing.is_null() {
        // SAFETY: as the caller says.
        let thing = unsafe { Box::from_raw(thing) };
        let _ = catch_unwind(AssertUnwindSafe(|| drop(thing)));
    }
}

/// The result of `work`, or that it panicked. What it may have left half done is the caller's to free, and nothing else.
fn caught(work: impl FnOnce() -> c_int) -> c_int {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(STANDFAST_PANICKED)
}
