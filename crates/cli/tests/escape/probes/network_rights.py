# Case 13: what root inside may do to its own network. Everything that changes it is refused, whoever owns the namespace.

# The families of messages of rtnetlink, by the number of their NEW; DEL is the next, SET the third after it.
GROUPS = {"links": 16, "addresses": 20, "routes": 24, "neighbours": 28, "rules": 32, "qdiscs": 36, "classes": 40,
          "filters": 44, "actions": 48, "prefixes": 52, "multicast addresses": 56, "anycast addresses": 60,
          "neighbour tables": 64, "duplicate address options": 68, "address labels": 72, "DCB": 76, "netconf": 80,
          "multicast databases": 84, "namespace ids": 88, "statistics": 92, "cache reports": 96, "chains": 100,
          "next hops": 104, "link properties": 108, "VLANs": 112, "next hop buckets": 116, "tunnels": 120}
VERBS = {"NEW": 0, "DEL": 1, "SET": 3}
# REQUEST and ACK with: nothing, REPLACE, EXCL and CREATE, CREATE, APPEND, DUMP.
FLAGS = [0x005, 0x105, 0x605, 0x405, 0x805, 0x305]
# Unspecified, IPv4, bridge, IPv6, MPLS, and a family that is none.
FAMILIES = [0, 2, 7, 10, 28, 200]
index = socket.if_nametoindex("eth0")


def answer(kind, flags, body):
    """What the kernel says to one message; 0 is success."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as s:
        s.settimeout(5)
        s.send(struct.pack("IHHII", 16 + len(body), kind, flags, 1, 0) + body)
        _, reply, _, _, _, code = struct.unpack("IHHIIi", s.recv(65536)[:20])
        # 2 is NLMSG_ERROR; anything else is a list, so the message was taken.
        return -code if reply == 2 else 0


def send_all(kind, unknown):
    """Every form of a message, until one gets further than it may."""
    for family in FAMILIES:
        for flags in FLAGS:
            code = answer(kind, flags, struct.pack("BxHiII", family, 0, index, 0, 0) + bytes(48))
            if code != errno.EPERM and not (unknown and code == errno.EOPNOTSUPP):
                return f"family {family} flags {flags:#x} gave {errno.errorcode.get(code, code)}"
    raise OSError(errno.EPERM, "all refused")


for name, first in GROUPS.items():
    for verb, offset in VERBS.items():
        refused(f"RTM_{verb} of {name}", lambda: send_all(first + offset, False))


def send_unknown():
    for kind in range(124, 256):
        if kind % 4 != 2:
            try:
                found = send_all(kind, True)
            except OSError:
                continue
            return f"{kind}: {found}"
    raise OSError(errno.EPERM, "all refused")


refused("messages of a later kernel", send_unknown)


def set_by_ioctl(number):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        request = struct.pack("16sHHI", b"eth0", 2, 0, 0x0A000001) + bytes(24)
        return fcntl.ioctl(s, number, request)


IOCTLS = {"flags": 0x8914, "address": 0x8916, "broadcast address": 0x891A, "netmask": 0x891C, "metric": 0x891E,
          "MTU": 0x8922, "name": 0x8923, "hardware address": 0x8924, "queue length": 0x8943, "multicast": 0x8931,
          "add a route": 0x890B, "delete a route": 0x890C, "add to ARP": 0x8955, "delete from ARP": 0x8953,
          "add a bridge": 0x89A0, "add a tunnel": 0x89F1, "add a VLAN": 0x8983}
for name, number in IOCTLS.items():
    refused(f"ioctl: {name}", lambda: set_by_ioctl(number), FILTERED | {errno.ENOPKG, errno.ENOTTY, errno.EINVAL, errno.EOPNOTSUPP} if number >= 0x8980 else FILTERED)


def set_option(level, option, value, family=socket.AF_INET, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as s:
        return s.setsockopt(level, option, value)


refused("SO_MARK", lambda: set_option(socket.SOL_SOCKET, 36, 1))
refused("SO_RCVBUFFORCE", lambda: set_option(socket.SOL_SOCKET, 33, 1 << 20))
refused("SO_SNDBUFFORCE", lambda: set_option(socket.SOL_SOCKET, 32, 1 << 20))
refused("SO_PRIORITY above 6", lambda: set_option(socket.SOL_SOCKET, 12, 7))
refused("TCP_REPAIR", lambda: set_option(socket.IPPROTO_TCP, 19, 1))
refused("IP_TRANSPARENT", lambda: set_option(socket.IPPROTO_IP, 19, 1))
refused("IPV6_TRANSPARENT", lambda: set_option(41, 75, 1, socket.AF_INET6))
for name, family, level in [("iptables", socket.AF_INET, 0), ("ip6tables", socket.AF_INET6, 41)]:
    refused(f"replace the rules of {name}", lambda: set_option(level, 64, bytes(128), family, socket.SOCK_DGRAM), FILTERED | {errno.ENOPROTOOPT})

RAW = {"AF_INET": 2, "AF_INET6": 10}
for name, family in RAW.items():
    for protocol in [0, 1, 6, 17, 58, 255]:
        refused(f"raw socket of {name} for protocol {protocol}", lambda: call(41, family, 3, protocol))
    # The kernel takes this old type of an IPv4 socket for a packet socket.
    refused(f"SOCK_PACKET of {name}", lambda: call(41, family, 10, 0x300))
    refused(f"raw socket of {name} that closes on exec", lambda: call(41, family, 3 | 0o2000000, 1))
for name, kind in [("raw", 3), ("cooked", 2), ("old", 10)]:
    refused(f"packet socket, {name}", lambda: call(41, 17, kind, 0x300), FILTERED | {errno.EAFNOSUPPORT})


def capabilities(number):
    lines = dict(line.split(":\t") for line in open("/proc/self/status").read().splitlines() if line.startswith("Cap"))
    return [name for name, value in lines.items() if int(value, 16) >> number & 1]


for name, number in [("CAP_NET_ADMIN", 12), ("CAP_NET_RAW", 13)]:
    gives(f"{name} in any set", lambda: capabilities(number), [], "not even in the bounding set")
    gives(f"{name} by prctl", lambda: libc.prctl(23, number, 0, 0, 0), 0, "not in the bounding set")


def regain(number):
    """capset, version 3: permitted and effective with the capability."""
    header, data = struct.pack("Ii", 0x20080522, 0), struct.pack("6I", 1 << number, 1 << number, 0, 0, 0, 0)
    return call(126, ctypes.c_char_p(header), ctypes.c_char_p(data))


for name, number in [("CAP_NET_ADMIN", 12), ("CAP_NET_RAW", 13)]:
    refused(f"take {name}", lambda: regain(number))
