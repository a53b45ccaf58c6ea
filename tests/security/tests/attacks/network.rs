//! Reaching anybody.

use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use cubicle_backend::Backend;
use cubicle_model::{Binding, Listener};
use rustix::io::Errno;

use crate::arena::{Arena, skip, token};

const EPERM: i32 = Errno::PERM.raw_os_error();
const EACCES: i32 = Errno::ACCESS.raw_os_error();
const UNREACHABLE: i32 = Errno::NETUNREACH.raw_os_error();
const REFUSED: i32 = Errno::CONNREFUSED.raw_os_error();
const NO_FAMILY: i32 = Errno::AFNOSUPPORT.raw_os_error();

#[test]
fn sandbox_has_no_network_device_but_loopback() {
    let Some(arena) = Arena::enter() else { return };
    assert_eq!(arena.attack(&["devices"]).saw(), "lo");
    assert_eq!(arena.attack(&["routes"]).saw(), "");
}

#[test]
fn sandbox_cannot_connect_to_services_on_the_loopback_of_the_host() {
    let Some(arena) = Arena::enter() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("the socket is ours");
    let address = listener.local_addr().expect("it is bound").to_string();
    arena.attack(&["connect", &address]).refused(&[REFUSED]);
    assert!(listener.accept().is_err(), "somebody connected");
}

#[test]
fn sandbox_cannot_send_datagrams_to_the_host() {
    let Some(arena) = Arena::enter() else { return };
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a free port");
    socket.set_nonblocking(true).expect("the socket is ours");
    let port = socket.local_addr().expect("it is bound").port();
    // On its own loopback nobody listens; nothing of it may arrive here.
    let _ = arena.attack(&["send", &format!("127.0.0.1:{port}")]);
    assert!(socket.recv(&mut [0; 8]).is_err(), "a datagram arrived");
}

#[test]
fn sandbox_cannot_connect_to_other_machines() {
    let Some(arena) = Arena::enter() else { return };
    for address in ["192.0.2.1:80", "10.0.0.1:22", "8.8.8.8:443", "[2001:db8::1]:80"] {
        arena.attack_from(arena.attacker, &["connect", address]).refused(&[UNREACHABLE]);
    }
    arena.unharmed();
}

#[test]
fn sandbox_cannot_reach_the_metadata_service() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["connect", "169.254.169.254:80"]).refused(&[UNREACHABLE]);
    arena.attack(&["connect", "[fd00:ec2::254]:80"]).refused(&[UNREACHABLE]);
}

#[test]
fn sandbox_cannot_ask_name_servers() {
    let Some(arena) = Arena::enter() else { return };
    for server in ["8.8.8.8:53", "1.1.1.1:53", "[2001:4860:4860::8888]:53"] {
        arena.attack_from(arena.attacker, &["send", server]).refused(&[UNREACHABLE]);
    }
    // The only one it knows is itself, where nobody answers unless the gateway does.
    let servers = arena.attack(&["read", "/etc/resolv.conf"]).saw().to_owned();
    let servers: Vec<&str> = servers.lines().filter_map(|line| line.strip_prefix("nameserver ")).collect();
    assert_eq!(servers, ["127.0.0.1"]);
    arena.attack(&["connect", "127.0.0.1:53"]).refused(&[REFUSED]);
}

#[test]
fn sandbox_may_listen_on_low_ports_and_the_host_allows_them_no_more_than_before() {
    let setting = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
    let before = std::fs::read_to_string(setting).expect("the host has the setting");
    if before.trim() == "0" {
        return skip("everybody on this host may listen on every port already");
    }
    let Some(arena) = Arena::enter() else { return };
    // Sandboxes were made by now, and their own setting is another one.
    assert_eq!(arena.attack(&["read", setting]).saw().trim(), "0");
    let (listener, said) = arena.begin(arena.neighbour, &["listen", "80"]);
    assert_eq!(said, "listening");
    arena.end(arena.neighbour, &listener);
    let fresh = arena.fresh(cubicle_model::LimitRequest::default());
    assert_eq!(fresh.attack(&["read", setting]).saw().trim(), "0");
    assert_eq!(std::fs::read_to_string(setting).expect("the host has the setting"), before);
}

#[test]
fn sandbox_cannot_take_the_port_of_a_listener_while_nobody_is_there() {
    let Some(arena) = Arena::enter() else { return };
    let fresh = arena.fresh(cubicle_model::LimitRequest::default());
    let listeners = vec![Listener::udp(53), Listener::tcp(3128), Listener::tcp(443).everywhere()];
    let late = Binding { listeners, ..Binding::default() };
    let bound = arena.wait(arena.backend.bind(fresh.id, &late)).expect("listeners are given");
    drop(bound);
    let taken = [Errno::ADDRINUSE.raw_os_error()];
    for (protocol, address) in [
        ("udp", "127.0.0.1:53"),
        ("udp", "0.0.0.0:53"),
        ("tcp", "127.0.0.1:3128"),
        ("tcp", "0.0.0.0:3128"),
        ("tcp", "127.0.0.1:443"),
        ("tcp", "127.128.0.7:443"),
    ] {
        arena.attack_from(fresh.id, &["share-port", protocol, address]).refused(&taken);
    }
    let again = arena.wait(arena.backend.bind(fresh.id, &late)).expect("listeners come back");
    assert_eq!(again.listeners.len(), 3);
    arena.unharmed();
}

#[test]
fn sandbox_cannot_connect_to_abstract_sockets_of_the_host() {
    let Some(arena) = Arena::enter() else { return };
    let name = token();
    let address = SocketAddr::from_abstract_name(name.as_bytes()).expect("a short name");
    let listener = UnixListener::bind_addr(&address).expect("the name is free");
    listener.set_nonblocking(true).expect("the socket is ours");
    arena.attack(&["connect-abstract", &name]).refused(&[REFUSED]);
    assert!(listener.accept().is_err(), "somebody connected");
}

#[test]
fn sandbox_cannot_connect_to_named_sockets_of_the_host() {
    let Some(arena) = Arena::enter() else { return };
    let path = arena.shared().join("service.sock");
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).expect("the directory is ours");
    listener.set_nonblocking(true).expect("the socket is ours");
    let path = path.display().to_string();
    arena.attack(&["connect-path", &path]).refused(&[Errno::NOENT.raw_os_error()]);
    for known in
        ["/run/docker.sock", "/var/run/docker.sock", "/run/systemd/private", "/run/dbus/system_bus_socket"]
    {
        arena.attack_from(arena.attacker, &["connect-path", known]).refused(&[Errno::NOENT.raw_os_error()]);
    }
    assert!(listener.accept().is_err(), "somebody connected");
}

#[test]
fn sandbox_cannot_connect_to_abstract_sockets_of_another_sandbox() {
    let Some(arena) = Arena::enter() else { return };
    let name = token();
    let (listener, _) = arena.begin(arena.neighbour, &["listen-abstract", &name]);
    arena.attack(&["connect-abstract", &name]).refused(&[REFUSED]);
    arena.end(arena.neighbour, &listener);
}

#[test]
fn sandbox_cannot_connect_to_services_of_another_sandbox() {
    let Some(arena) = Arena::enter() else { return };
    let (listener, _) = arena.begin(arena.neighbour, &["listen", "4711"]);
    arena.attack(&["connect", "127.0.0.1:4711"]).refused(&[REFUSED]);
    arena.end(arena.neighbour, &listener);
}

#[test]
fn sandbox_cannot_open_raw_sockets() {
    let Some(arena) = Arena::enter() else { return };
    let (raw, icmp) = ("3", "1");
    arena.attack(&["socket", "2", raw, icmp]).refused(&[EPERM]);
    arena.attack(&["socket", "2", raw, "255"]).refused(&[EPERM]);
    arena.attack(&["socket", "10", raw, "58"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_open_ping_sockets() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["socket", "2", "2", "1"]).refused(&[EACCES, EPERM]);
}

#[test]
fn sandbox_cannot_open_packet_sockets() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["socket", "17", "3", "0"]).refused(&[NO_FAMILY]);
}

#[test]
fn sandbox_cannot_open_unusual_sockets() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["families"]).refused(&[NO_FAMILY]);
}

#[test]
fn sandbox_cannot_open_unusual_sockets_as_pairs() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["families-by-pair"]).refused(&[NO_FAMILY]);
}

#[test]
fn sandbox_cannot_open_unusual_protocols_of_ordinary_families() {
    let Some(arena) = Arena::enter() else { return };
    let refused = [NO_FAMILY, EPERM, Errno::PROTONOSUPPORT.raw_os_error()];
    // SCTP, DCCP, UDP-Lite, and what a kernel loads a module for when it is asked.
    for (kind, protocol) in [("1", "132"), ("5", "132"), ("6", "33"), ("2", "136"), ("5", "262")] {
        arena.attack_from(arena.attacker, &["socket", "2", kind, protocol]).refused(&refused);
    }
    arena.unharmed();
}

#[test]
fn sandbox_cannot_make_network_devices() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["make-device"]).refused(&[EPERM]);
    assert_eq!(arena.attack(&["devices"]).saw(), "lo");
}

#[test]
fn sandbox_cannot_change_its_network_devices() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["switch-off-loopback"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_touch_the_firewall() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["firewall"]).refused(&[EPERM, Errno::NOPROTOOPT.raw_os_error()]);
}
