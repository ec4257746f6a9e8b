# Case 13. TARGETS, NEIGHBOUR and PORT come from the test.
import select


def reached(family, kind, pairs, seconds=1.5):
    """Dials all at once and says who answered."""
    waiting, answered = {}, []
    for name, address in pairs:
        s = socket.socket(family, kind)
        s.setblocking(False)
        try:
            s.connect(address)
        except BlockingIOError:
            pass
        except OSError:
            continue
        waiting[s] = name
    end = time.time() + seconds
    while waiting and time.time() < end:
        _, ready, _ = select.select([], list(waiting), [], end - time.time())
        for s in ready:
            name = waiting.pop(s)
            if s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                answered.append(name)
    return answered


answered = reached(socket.AF_INET, socket.SOCK_STREAM, [(name, (address, port)) for name, address, port in TARGETS])
for name in dict.fromkeys(name for name, _, _ in TARGETS):
    say(f"TCP to {name}", "broken" if name in answered else "held", "not reached")
mapped = reached(socket.AF_INET6, socket.SOCK_STREAM, [(name, ("::ffff:" + address, port)) for name, address, port in TARGETS])
say("TCP to all of them as mapped IPv6", "broken" if mapped else "held", "not reached" if not mapped else str(mapped))
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    for name, address, port in TARGETS:
        for _ in range(3):
            try:
                # The sandbox's own loopback is its own.
                s.sendto(b"x", (address, port))
            except OSError:
                pass
# The test looks at the host's sockets afterwards and fails if anything came.
say("UDP to the host by all of them", "held", "nothing arrives")
interfaces = {line.split()[-1] for line in open("/proc/net/if_inet6")} if os.path.exists("/proc/net/if_inet6") else set()
say("IPv6 beyond loopback", "held" if interfaces <= {"lo"} else "broken", "none")
v6 = reached(socket.AF_INET6, socket.SOCK_STREAM, [(a, (a, PORT, 0, 2)) for a in ["fe80::1", "ff02::1", "fd00::1", "2001:db8::1"]], 0.5)
say("TCP to IPv6 link-local and others", "broken" if v6 else "held", "unreachable")


def forge(source):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.setsockopt(socket.IPPROTO_IP, 15, 1)  # IP_FREEBIND
        s.bind((source, 0))
        return s.sendto(b"x", ("192.0.2.1", 9))


def transparent():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.setsockopt(socket.IPPROTO_IP, 19, 1)


def route_message(kind, flags, body):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as s:
        s.send(struct.pack("IHHII", 16 + len(body), kind, flags, 1, 0) + body)
        _, answer, _, _, _ = struct.unpack("IHHII", s.recv(4096)[:16])
        s.send(struct.pack("IHHII", 16 + len(body), kind, flags, 2, 0) + body)
        reply = s.recv(4096)
        code = struct.unpack("i", reply[16:20])[0]
        if code:
            raise OSError(-code, "netlink")


UNSENT = {errno.EINVAL, errno.EPERM, errno.EADDRNOTAVAIL, errno.ENETUNREACH}
refused("send with the neighbour's address", lambda: forge(NEIGHBOUR), UNSENT)
refused("send with a foreign address", lambda: forge("192.0.2.77"), UNSENT)
refused("transparent socket", transparent)
refused("packet socket for ARP", lambda: socket.socket(17, socket.SOCK_RAW, 0x0608), {errno.EAFNOSUPPORT, errno.EPERM})
refused("raw IP socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 255))
index = socket.if_nametoindex("eth0")
address = struct.pack("BBBBI", 2, 32, 0, 0, index) + struct.pack("HH", 8, 2) + socket.inet_aton(NEIGHBOUR)
refused("take the neighbour's address", lambda: route_message(20, 0x605, address))
refused("set the link down", lambda: route_message(16, 5, struct.pack("BxHiII", 0, 0, index, 0, 1)))
for name in ["route_localnet", "forwarding", "rp_filter", "accept_redirects"]:
    refused(f"change {name}", lambda: write_to(f"/proc/sys/net/ipv4/conf/all/{name}"), CLOSED)
