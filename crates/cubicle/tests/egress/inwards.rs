//! From inside towards the host: the control plane, its database, the gateway itself, and other sandboxes.

use std::os::unix::net::UnixListener;

use serde_json::json;

use crate::client::eventually;
use crate::inside::Attack;
use crate::world::{Setting, in_a_world, in_a_world_with};

/// It is on every address, and a policy that names all of them is still not enough.
#[test]
fn the_control_plane_is_not_reached_from_a_sandbox() {
    let everywhere = Setting { listen: Some("0.0.0.0:0"), ..Setting::default() };
    in_a_world_with(everywhere, |world| {
        for name in ["control.test", "control-six.test"] {
            world.names.set(name, &[if name.contains("six") { "::1" } else { "10.1.2.3" }]);
        }
        let port = world.api_port().to_owned();
        let policy = format!(
            "open; allow 127.0.0.0/8:{port}; allow 10.0.0.0/8:{port}; allow 93.184.216.0/24; allow control.test:{port} private; \
             allow localhost:{port} private; allow control-six.test:{port} private; allow [::1]:{port}"
        );
        world.sandbox(&policy).withstands(&CONTROL_PLANE);
    });
}

#[test]
fn the_host_and_what_is_beside_it_are_not_reached_from_a_sandbox() {
    in_a_world(|world| {
        let scratch = world.server.host.scratch().to_owned();
        let of_host = UnixListener::bind(scratch.join("of-the-host.sock")).expect("the directory is ours");
        of_host.set_nonblocking(true).expect("the socket is ours");
        let inside = world.sandbox("allow origin.test; allow private.test");
        let command = json!({
            "command": format!("echo {} > /workspace/scratch", scratch.display()),
        });
        inside.exec(&command);
        inside.withstands(&BESIDE);
        assert!(of_host.accept().is_err(), "somebody connected");
        // The kernel takes a descriptor over TCP and drops it: the gateway has files of its own alone.
        let gateway = world.gateway().expect("it was used");
        let held = std::fs::read_dir(format!("/proc/{gateway}/fd")).expect("this is root").flatten();
        let held: Vec<_> = held.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect();
        assert!(held.iter().all(|path| !path.ends_with("mine")), "{held:?}");
    });
}

#[test]
fn a_sandbox_does_not_reach_another() {
    in_a_world(|world| {
        let other = world.sandbox("allow origin.test");
        let servers = r#"
import http.server
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        open("/workspace/visited", "a").write(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"REACHED")
    do_POST = do_CONNECT = do_GET
for place in (("0.0.0.0", 8080), ("::", 8081), ("127.0.0.1", 9100)):
    family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
    server = type("Server", (http.server.ThreadingHTTPServer,), {"address_family": family})(place, Page)
    threading.Thread(target=server.serve_forever).start()
u = socket.socket(socket.AF_UNIX)
u.bind("\0of-a-neighbour")
u.listen()
open("/workspace/ready", "w").close()
"#;
        let asked = json!({ "command": other.with_prelude(servers), "background": true });
        other.exec(&asked);
        eventually("the neighbour's servers", || (other.sh("ls /workspace").contains("ready")).then_some(()));
        assert!(other.sh("curl -s --noproxy '*' http://127.0.0.1:8080/own").contains("REACHED"));
        let inside =
            world.sandbox("allow origin.test; allow 127.0.0.1:8080; allow tcp://localhost:8080 private");
        inside.withstands(&NEIGHBOUR);
        assert_eq!(other.sh("cat /workspace/visited"), "/own");
    });
}

const CONTROL_PLANE: [Attack; 6] = [
    Attack {
        name: "the_api_is_not_reached_directly",
        program: r#"
for address in ("127.0.0.1", "10.1.2.3", "93.184.216.34", "::1", "0.0.0.0", "169.254.169.254"):
    direct(address, $API, data=b"GET /api/v1/leases HTTP/1.1\r\nHost: x\r\n\r\n")
"#,
        denied: "",
    },
    Attack {
        name: "the_api_is_not_reached_by_a_request",
        program: r#"
for host in ("127.0.0.1", "10.1.2.3", "93.184.216.34", "[::1]", "localhost", "control.test", "control-six.test", "[::ffff:127.0.0.1]", "127.0.0.2"):
    print("REACHED" if "unauthenticated" in get(f"http://{host}:$API/api/v1/leases") else "no")
    print("REACHED" if "alive" in get(f"http://{host}:$API/healthz") else "no")
"#,
        denied: "an address of the control plane",
    },
    Attack {
        name: "the_api_is_not_reached_through_a_tunnel",
        program: r#"
for host in ("127.0.0.1", "10.1.2.3", "93.184.216.34", "[::1]", "localhost", "control.test", "control-six.test"):
    through(tunnel(f"{host}:$API"), f"GET /api/v1/leases HTTP/1.1\r\nHost: {host}:$API\r\n\r\n")
    print("REACHED" if tunnel(f"{host}:$API") else "no tunnel")
"#,
        denied: "an address of the control plane",
    },
    Attack {
        name: "the_api_is_not_reached_through_socks",
        program: r#"
for kind, host in ((1, "127.0.0.1"), (1, "10.1.2.3"), (3, "localhost"), (3, "control.test"), (4, "::1"), (4, "::ffff:127.0.0.1"), (3, "127.0.0.1")):
    print("REACHED" if socks(kind, host, $API) else "no")
"#,
        denied: "an address of the control plane",
    },
    Attack {
        name: "the_api_is_not_reached_by_the_address_of_a_name",
        program: r#"
for name in ("control.test", "control-six.test"):
    code, addresses = ask(name)
    if addresses:
        direct(addresses[0], $API, data=f"GET /healthz HTTP/1.1\r\nHost: {name}:$API\r\n\r\n".encode())
"#,
        denied: "",
    },
    Attack {
        name: "an_open_policy_does_not_open_the_host",
        program: r#"
for target in ("127.0.0.1:9000", "[::1]:9000", "10.1.2.3:5432", "169.254.169.254:80", "localhost:5432"):
    through(tunnel(target), "ATTACK")
"#,
        denied: "always refused",
    },
];

const BESIDE: [Attack; 5] = [
    Attack {
        name: "the_database_of_the_control_plane_is_not_reached",
        program: r#"
startup = struct.pack(">II", 8, 80877103) + b"ATTACK"
for host in ("10.1.2.3", "127.0.0.1", "private.test", "localhost"):
    through(tunnel(f"{host}:5432"), startup)
    through(socks(3, host, 5432), startup)
direct("10.1.2.3", 5432)
code, addresses = ask("private.test")
direct(addresses[0], 5432)
"#,
        denied: "10.1.2.3:5432",
    },
    Attack {
        name: "a_cluster_around_the_host_is_not_reached",
        program: r#"
for host in ("10.0.0.1", "10.96.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"):
    for port in (80, 443, 6443):
        through(tunnel(f"{host}:{port}"), "ATTACK")
        get(f"http://{host}:{port}/ATTACK")
"#,
        denied: "kubernetes.default.svc",
    },
    Attack {
        name: "no_socket_of_the_host_is_in_the_file_tree",
        program: r#"
import stat
scratch = open("/workspace/scratch").read().strip()
print("REACHED" if os.path.exists(scratch) else "not there")
for place in (f"{scratch}/of-the-host.sock", f"/proc/1/root{scratch}/of-the-host.sock"):
    attempt(socket.socket(socket.AF_UNIX).connect, place)
for top in ("/", "/run", "/var", "/tmp", "/workspace", "/home", "/dev"):
    for root, folders, files in os.walk(top):
        if root.startswith(("/proc", "/sys", "/usr")):
            folders[:] = []
            continue
        for name in files:
            try:
                if stat.S_ISSOCK(os.lstat(os.path.join(root, name)).st_mode):
                    print("found", root, name)
                    socket.socket(socket.AF_UNIX).connect(os.path.join(root, name))
                    print("REACHED")
            except OSError as error:
                print(error)
"#,
        denied: "",
    },
    Attack {
        name: "the_control_socket_of_the_gateway_is_nobodys_to_take",
        program: r#"
print(open("/proc/net/unix").read())
for pid in os.listdir("/proc"):
    for folder in ("fd", "map_files", "task"):
        path = f"/proc/{pid}/{folder}"
        if not pid.isdigit() or int(pid) == os.getpid():
            continue
        try:
            for entry in os.listdir(path):
                target = os.readlink(f"{path}/{entry}") if folder != "task" else ""
                if "socket:" in target:
                    os.open(f"{path}/{entry}", os.O_RDWR)
                    print("REACHED", pid, target)
        except OSError as error:
            print(pid, folder, error)
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for target in (1, 2, 3):
    pidfd = libc.syscall(434, target, 0)
    for number in range(30):
        if pidfd >= 0 and libc.syscall(438, pidfd, number, 0) >= 0:
            print("REACHED: a descriptor of", target)
print(os.strerror(ctypes.get_errno()))
"#,
        denied: "",
    },
    Attack {
        name: "descriptors_cannot_be_handed_to_the_gateway",
        program: r#"
import array
mine = os.open("/workspace/mine", os.O_RDWR | os.O_CREAT)
for place in (PROXY, ("127.0.0.1", 53), ("127.0.0.1", 80)):
    with socket.create_connection(place, timeout=2) as s:
        try:
            s.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [mine]))])
        except OSError as error:
            print(error)
        try:
            # As the control plane speaks to it.
            s.sendall(struct.pack(">I", 12) + b'{"attach":{}}')
            s.shutdown(socket.SHUT_WR)
            print(drain(s)[:80])
        except OSError as error:
            print(error)
"#,
        denied: "",
    },
];

const NEIGHBOUR: [Attack; 3] = [
    Attack {
        name: "a_neighbour_is_not_reached_directly",
        program: r#"
for address in ("127.0.0.1", "127.0.0.2", "::1", "0.0.0.0", "10.1.2.3"):
    for port in (8080, 8081, 9100):
        direct(address, port, data=b"GET /neighbour HTTP/1.0\r\n\r\n")
"#,
        denied: "",
    },
    Attack {
        name: "a_neighbour_is_not_reached_through_the_gateway",
        program: r#"
for host in ("127.0.0.1", "localhost", "[::1]", "127.128.0.1", "0.0.0.0"):
    for port in (8080, 8081, 9100, 3128):
        get(f"http://{host}:{port}/neighbour")
        through(tunnel(f"{host}:{port}"), "GET /neighbour HTTP/1.0\r\n\r\n")
        through(socks(3, host.strip("[]"), port), "GET /neighbour HTTP/1.0\r\n\r\n")
"#,
        denied: "127.0.0.1:9100",
    },
    Attack {
        name: "a_neighbour_is_not_seen",
        program: r#"
attempt(socket.socket(socket.AF_UNIX).connect, "\0of-a-neighbour")
print("REACHED" if "of-a-neighbour" in open("/proc/net/unix").read() else "not there")
print("REACHED" if ":238C" in open("/proc/net/tcp").read() else "not there")
for name in ("sandbox", "neighbour", "agent"):
    print(ask(name))
"#,
        denied: "",
    },
];
