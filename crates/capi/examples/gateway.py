"""A service that announces itself: gateway.py LIBSTANDFAST PEER PORT

SIGUSR1 makes it sick, SIGUSR2 well again, SIGTERM drains it.
"""
import ctypes, signal, sys, time

library, peer, port = sys.argv[1], sys.argv[2].encode(), int(sys.argv[3])
sf = ctypes.CDLL(library)
sf.standfast_builder_new.restype = ctypes.c_void_p
sf.standfast_start.restype = ctypes.c_void_p

sick = leaving = False
def on_signal(number, _):
    global sick, leaving
    leaving = leaving or number == signal.SIGTERM
    sick = number == signal.SIGUSR1
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, on_signal)

builder = ctypes.c_void_p(sf.standfast_builder_new(64513))
sf.standfast_builder_router_id(builder, b"192.0.2.11")
sf.standfast_builder_peer(builder, peer, 64512)
sf.standfast_builder_peer_port(builder, port)
sf.standfast_builder_vip(builder, b"web")
sf.standfast_builder_vip_prefix(builder, b"198.51.100.10/32")
sf.standfast_builder_interval(builder, 100)
sf.standfast_builder_lease(builder, 3000)
error = ctypes.create_string_buffer(1024)
announcer = ctypes.c_void_p(sf.standfast_start(builder, error, ctypes.c_size_t(1024)))
if not announcer:
    sys.exit(error.value.decode())

while not leaving:  # the loop that does the work says how it is
    sf.standfast_report(announcer, ctypes.c_bool(not sick), b"told to be sick" if sick else None)
    time.sleep(0.05)
left = ctypes.c_size_t(0)
sf.standfast_drain(announcer, 1000, ctypes.byref(left))
print(f"drained, {left.value} connections left")
sf.standfast_free(announcer)
