//! Ways around the gateway: whatever the kernel offers that is not a connection to it.

use std::io::{Read, Write};

use crate::inside::Attack;
use crate::world::{DATAGRAM_TRAPS, TRAPS, in_a_world};

#[test]
fn nothing_leaves_a_sandbox_but_through_the_gateway() {
    in_a_world(|world| {
        // An abstract socket belongs to a network, and this one to the host's.
        let address =
            <std::os::unix::net::SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(
                b"of-the-host",
            );
        let of_host = std::os::unix::net::UnixListener::bind_addr(&address.expect("a name"));
        let of_host = of_host.expect("nobody else has it here");
        of_host.set_nonblocking(true).expect("the socket is ours");
        world.sandbox("allow origin.test").withstands(&ATTACKS);
        assert!(of_host.accept().is_err(), "somebody connected");
        assert_eq!(world.names.asked().iter().find(|name| name.contains("attack")), None);
        // The kernel counts what came to any of the addresses.
        let counters = std::fs::read_to_string("/proc/thread-self/net/snmp").expect("a network has counters");
        let icmp: Vec<&str> = counters.lines().filter(|line| line.starts_with("Icmp:")).collect();
        let [names, values] = icmp[..] else { panic!("{counters}") };
        let echoes =
            names.split_whitespace().zip(values.split_whitespace()).find(|(name, _)| *name == "InEchos");
        assert_eq!(echoes, Some(("InEchos", "0")));
    });
}

/// Whoever is on the host walks into every one of the traps, so that nobody who got there from inside was missed.
#[test]
fn the_traps_tell_of_whoever_comes() {
    in_a_world(|world| {
        for at in TRAPS {
            let mut stream = std::net::TcpStream::connect(at).expect("somebody listens");
            stream.write_all(b"GET / HTTP/1.0\r\nConnection: close\r\n\r\n").expect("it is open");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("it is open");
            assert!(answer.contains("REACHED"), "{at}: {answer}");
        }
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").expect("a free port");
        for at in DATAGRAM_TRAPS {
            socket.send_to(b"x", at).expect("it can be sent");
            socket.recv(&mut [0; 100]).expect("it is answered");
        }
        assert_eq!(world.trapped().len(), TRAPS.len() + DATAGRAM_TRAPS.len());
    });
}

const ATTACKS: [Attack; 16] = [
    Attack {
        name: "a_raw_socket_cannot_be_opened",
        program: r#"
for family in (socket.AF_INET, socket.AF_INET6):
    for protocol in (socket.IPPROTO_TCP, socket.IPPROTO_UDP, socket.IPPROTO_RAW, socket.IPPROTO_ICMP):
        try:
            socket.socket(family, socket.SOCK_RAW, protocol)
            print("REACHED", family, protocol)
        except OSError as error:
            print(error)
"#,
        denied: "",
    },
    Attack {
        name: "frames_cannot_be_put_on_a_wire",
        program: r#"
for kind in (socket.SOCK_RAW, socket.SOCK_DGRAM):
    try:
        socket.socket(socket.AF_PACKET, kind, 0x0300)
        print("REACHED")
    except OSError as error:
        print(error)
"#,
        denied: "",
    },
    Attack {
        name: "an_echo_request_reaches_nobody",
        program: r#"
packet = struct.pack(">BBHHH", 8, 0, 0xf7ff - 1, 1, 0) + b"ATTACK"
for address in ("93.184.216.34", "10.1.2.3", "169.254.169.254"):
    for kind in (socket.SOCK_RAW, socket.SOCK_DGRAM):
        try:
            s = socket.socket(socket.AF_INET, kind, socket.IPPROTO_ICMP)
            s.settimeout(1)
            s.sendto(packet, (address, 0))
            s.recv(100)
            print("REACHED")
        except OSError as error:
            print(error)
"#,
        denied: "",
    },
    Attack {
        name: "a_datagram_reaches_nobody",
        program: r#"
places = [("93.184.216.34", 9999), ("10.1.2.3", 53), ("127.0.0.1", 9999), ("255.255.255.255", 9999), ("224.0.0.1", 9999)]
for place in places:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    attempt(s.sendto, b"ATTACK", place)
"#,
        denied: "",
    },
    Attack {
        name: "the_hosts_name_server_is_not_asked",
        program: r#"
for server in ("127.0.0.53", "93.184.216.34", "10.1.2.3", "8.8.8.8"):
    print(ask("attack.origin.test", to=(server, 53), wait=1))
"#,
        denied: "",
    },
    Attack {
        name: "a_public_address_is_not_reached_directly",
        program: r#"
for port in (22, 80, 443, 7000, 8080):
    direct("93.184.216.34", port)
direct("2606:4700::1", 80)
"#,
        denied: "",
    },
    Attack {
        name: "the_loopback_of_the_host_is_another",
        program: r#"
for address in ("127.0.0.1", "127.0.0.53", "0.0.0.0", "::1", "::ffff:127.0.0.1"):
    for port in (9000, 5432, $API):
        direct(address, port)
# On these ports of the loopback the gateway listens, but no name leads to this address.
for port in (80, 443):
    direct("127.0.0.1", port, data=b"GET /ATTACK HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
"#,
        denied: "",
    },
    Attack {
        name: "machines_around_the_host_are_not_reached_directly",
        program: r#"
for port in (80, 443, 5432):
    direct("10.1.2.3", port)
for address in ("192.168.0.1", "172.17.0.1", "100.64.0.1", "fd00::1", "fe80::1%lo"):
    direct(address, 80)
"#,
        denied: "",
    },
    Attack {
        name: "the_metadata_address_is_not_reached_directly",
        program: r#"
direct("169.254.169.254", 80)
direct("fd00:ec2::254", 80)
"#,
        denied: "",
    },
    Attack {
        name: "addresses_and_routes_cannot_be_added",
        program: r#"
import fcntl
for request, value in ((0x8916, struct.pack("16sH2s4s8x", b"lo:1", socket.AF_INET, b"", socket.inet_aton("93.184.216.1"))),
                       (0x89a0, b"bridge0\0")):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        fcntl.ioctl(s, request, value)
        print("REACHED")
    except OSError as error:
        print(error)
os.system("ip route add default dev lo 2>&1; ip link add veth0 type veth 2>&1; ip address add 93.184.216.1/24 dev lo 2>&1")
try:
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    s.bind((0, 0))
    # A new address for the loopback device.
    body = struct.pack("BBBBI", socket.AF_INET, 24, 0, 0, 1) + struct.pack("HH4s", 8, 2, socket.inet_aton("93.184.216.1"))
    s.send(struct.pack("IHHII", 16 + len(body), 20, 0x605, 1, 0) + body)
    code = struct.unpack("i", s.recv(4096)[16:20])[0]
    print("REACHED" if code == 0 else f"netlink: {code}")
except OSError as error:
    print(error)
direct("93.184.216.34", 80)
"#,
        denied: "",
    },
    Attack {
        name: "a_device_for_a_tunnel_cannot_be_made",
        program: r#"
print("REACHED" if os.path.exists("/dev/net/tun") else "no tun")
attempt(os.makedirs, "/dev/net")
attempt(os.mknod, "/tmp/tun", 0o20666, os.makedev(10, 200))
attempt(os.open, "/tmp/tun", os.O_RDWR)
"#,
        denied: "",
    },
    Attack {
        name: "another_network_cannot_be_entered",
        program: r#"
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for pid in os.listdir("/proc"):
    if not pid.isdigit():
        continue
    try:
        with open(f"/proc/{pid}/ns/net") as net:
            if os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net"):
                print("REACHED" if libc.setns(net.fileno(), 0x40000000) == 0 else "setns refused")
    except OSError as error:
        print(error)
# A new one of its own is as empty as the first.
if libc.unshare(0x10000000 | 0x40000000) == 0:
    direct("93.184.216.34", 80)
else:
    print("unshare:", os.strerror(ctypes.get_errno()))
"#,
        denied: "",
    },
    Attack {
        name: "other_families_of_sockets_lead_nowhere",
        program: r#"
for family, kind, protocol in ((40, 1, 0), (31, 3, 0), (38, 5, 0), (44, 3, 0), (29, 3, 1), (17, 3, 0), (30, 2, 0), (21, 5, 0)):
    try:
        s = socket.socket(family, kind, protocol)
        s.settimeout(1)
        if family == 40:
            s.connect((2, 22))
            print("REACHED")
        print("opened", family)
    except OSError as error:
        print(family, error)
"#,
        denied: "",
    },
    Attack {
        name: "other_transports_lead_nowhere",
        program: r#"
for kind, protocol in ((socket.SOCK_STREAM, 262), (socket.SOCK_STREAM, 132), (socket.SOCK_SEQPACKET, 132),
                       (socket.SOCK_DGRAM, 136), (6, 33)):
    for address in ("93.184.216.34", "127.0.0.1"):
        try:
            s = socket.socket(socket.AF_INET, kind, protocol)
            s.settimeout(1)
            s.connect((address, 9000))
            s.send(b"ATTACK")
            print(s.recv(100))
        except OSError as error:
            print(protocol, error)
"#,
        denied: "",
    },
    Attack {
        name: "abstract_sockets_of_the_host_are_not_there",
        program: r#"
try:
    s = socket.socket(socket.AF_UNIX)
    s.connect("\0of-the-host")
    print("REACHED")
except OSError as error:
    print(error)
"#,
        denied: "",
    },
    Attack {
        name: "a_connection_without_a_syn_is_none",
        program: r#"
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
s.settimeout(2)
attempt(s.sendto, b"ATTACK", 0x20000000, ("93.184.216.34", 7000))
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
attempt(s.bind, ("93.184.216.34", 0))
# IP_TRANSPARENT, IP_FREEBIND, SO_BINDTODEVICE, SO_MARK
for level, option, value in ((0, 19, 1), (0, 15, 1), (1, 25, b"eth0\0"), (1, 36, 1)):
    attempt(s.setsockopt, level, option, value)
attempt(s.connect, ("93.184.216.34", 7000))
"#,
        denied: "",
    },
];
