//! The gateway as the thing that is attacked: its ports, its room, and what it was told.

use serde_json::json;

use crate::client::eventually;
use crate::inside::Attack;
use crate::world::in_a_world;

#[test]
fn the_ports_of_the_gateway_cannot_be_taken_inside() {
    in_a_world(|world| {
        let inside = world.sandbox("allow origin.test");
        inside.withstands(&PORTS);
        // Between two gateways the sockets are the server's.
        world.kill_gateway();
        inside.withstands(&PORTS);
    });
}

#[test]
fn a_sandbox_that_floods_the_gateway_leaves_room_for_others() {
    in_a_world(|world| {
        let (one, other) = (world.sandbox("allow origin.test"), world.sandbox("allow origin.test"));
        for (name, flood) in FLOODS {
            let begun = format!("/workspace/{name}");
            let program = format!("{flood}\nopen('{begun}', 'w').close()\nwhile True:\n    time.sleep(60)\n");
            let exec = one.exec(&json!({ "command": one.with_prelude(&program), "background": true }));
            eventually(name, || {
                one.sh(&format!("ls {begun} 2>/dev/null || true")).contains(name).then_some(())
            });
            let answer = other.prints("get('http://origin.test/well')");
            assert!(answer.contains("REACHED GET /well"), "{name}: {answer}");
            let gateway = world.gateway().expect("it is in use");
            let status = std::fs::read_to_string(format!("/proc/{gateway}/status")).expect("it lives");
            let resident =
                status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
            let kilobytes: u64 = resident.trim().trim_end_matches(" kB").parse().expect("a number");
            assert!(kilobytes < 300_000, "{name}: the gateway has grown to {resident}");
            let path = format!("/api/v1/execs/{}", exec["exec_id"].as_str().expect("an id"));
            world.server.delete(&path);
            eventually("the end of it", || {
                let exec = world.server.get(&path).ok();
                (exec["state"] == "ended").then_some(())
            });
            // When it is over there is room for the one that made it, too.
            eventually("room", || {
                one.prints("get('http://origin.test/well')").contains("REACHED GET /well").then_some(())
            });
        }
        let bill = one.bill();
        assert!(bill["denials"].to_string().contains("too many connections"), "{bill}");
        assert_eq!(other.bill()["denials"], json!([]));
    });
}

/// What the clients do, and then nothing more.
const FLOODS: [(&str, &str); 3] = [
    (
        "connections_without_end",
        r#"
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 20
kept, left = [], 2500
for process in range(5):
    if os.fork() == 0:
        for number in range(min(500, most)):
            kept.append(socket.create_connection(PROXY, timeout=20))
        open(f"/workspace/child-{process}", "w").close()
        time.sleep(600)
while not all(os.path.exists(f"/workspace/child-{process}") for process in range(5)):
    time.sleep(0.05)
# One more is told that there is no room.
print(talk("GET http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\nConnection: close\r\n\r\n"), flush=True)
"#,
    ),
    (
        "heads_that_never_end",
        r#"
kept = []
for number in range(300):
    s = socket.create_connection(PROXY, timeout=20)
    s.sendall([b"G", b"GET http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\nX-Slow: ", b"CONNECT origin.test:443 HTTP/1.1\r\n",
               b"\x05", b"\x05\x01\x00\x05\x01", b"POST http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\nContent-Length: 1000000\r\n\r\nx"][number % 6])
    kept.append(s)
"#,
    ),
    (
        "answers_that_nobody_reads",
        r#"
kept = []
for number in range(100):
    s = socket.create_connection(PROXY, timeout=20)
    s.sendall(b"GET http://origin.test/flood HTTP/1.1\r\nHost: origin.test\r\n\r\n")
    s.recv(1)
    kept.append(s)
"#,
    ),
];

#[test]
fn a_policy_that_is_tightened_holds_for_what_is_open() {
    in_a_world(|world| {
        let inside = world.sandbox("allow tcp://origin.test:7000; allow origin.test");
        let program = r#"
tunnels = {"tunnel": tunnel("origin.test:7000"), "socks": socks(3, "origin.test", 7000),
           "forward": socket.create_connection((ask("origin.test")[1][0], 7000), timeout=20),
           "tls": secure(tunnel("origin.test:443"), "origin.test")}
for name, s in tunnels.items():
    if name == "tls":
        s.sendall(b"GET /before HTTP/1.1\r\nHost: origin.test\r\n\r\n")
    print(name, s.recv(100))
kept = socket.create_connection(PROXY, timeout=20)
kept.sendall(b"GET http://origin.test/before HTTP/1.1\r\nHost: origin.test\r\n\r\n")
print(kept.recv(1000))
open("/workspace/open", "w").close()
while not os.path.exists("/workspace/tightened"):
    time.sleep(0.01)
found = open("/workspace/found", "w")
for name, s in tunnels.items():
    try:
        s.sendall(b"ATTACK")
        print(name, "REACHED" if s.recv(100) else "ended", file=found)
    except OSError as error:
        print(name, error, file=found)
kept.sendall(b"GET http://origin.test/ATTACK HTTP/1.1\r\nHost: origin.test\r\n\r\n")
print(kept.recv(1000).decode(), file=found)
"#;
        let path = {
            let asked = json!({ "command": inside.with_prelude(program), "background": true });
            format!("/api/v1/execs/{}", inside.exec(&asked)["exec_id"].as_str().expect("an id"))
        };
        eventually("open tunnels", || inside.sh("ls /workspace").contains("open").then_some(()));
        inside.allow("allow other.test");
        world.outside.forget();
        inside.sh("touch /workspace/tightened");
        let ended = eventually("the end", || {
            let exec = world.server.get(&path).ok();
            (exec["state"] == "ended").then_some(exec)
        });
        assert_eq!(ended["result"]["exit_code"], 0, "{ended}");
        assert!(!world.outside.heard_of("ATTACK"));
        let found = inside.sh("cat /workspace/found");
        assert!(!found.contains("REACHED") && found.contains("403 Forbidden"), "{found}");
        let denials = inside.bill()["denials"].to_string();
        assert!(denials.contains("origin.test:7000") && denials.contains("origin.test:80"), "{denials}");
    });
}

/// An exec's own policy is for as long as it runs, and for nobody who stays behind.
#[test]
fn the_policy_of_an_exec_ends_with_it() {
    in_a_world(|world| {
        let inside = world.sandbox("allow other.test");
        let stays = r#"
while not os.path.exists("/workspace/wide"):
    time.sleep(0.01)
s = tunnel("origin.test:7000")
print(s.recv(100))
open("/workspace/opened", "w").close()
print("ended" if s.recv(100) == b"" else "REACHED")
open("/workspace/closed", "w").close()
"#;
        inside.exec(&json!({ "command": inside.with_prelude(stays), "background": true }));
        let wide = inside.exec(&json!({
            "command": "touch wide; until [ -e opened ]; do sleep 0.05; done",
            "policy": "allow tcp://origin.test:7000",
        }));
        assert_eq!(wide["result"]["exit_code"], 0, "{wide}");
        eventually("the end of the tunnel", || inside.sh("ls /workspace").contains("closed").then_some(()));
        assert_eq!(inside.egress()["said_by"], "lease");
        let after = inside.prints("through(tunnel('origin.test:7000'), 'ATTACK')");
        assert!(after.contains("403 Forbidden") && !world.outside.heard_of("ATTACK"), "{after}");
        // A second one at the same time is told to wait, as all of a sandbox shares one network.
        let asked = json!({ "command": "sleep 60", "policy": "allow origin.test", "background": true });
        let running = inside.exec(&asked);
        let path = format!("/api/v1/sandboxes/{}/execs", inside.sandbox);
        assert_eq!(world.server.post(&path, &asked).refused(409), "conflict");
        world.server.delete(&format!("/api/v1/execs/{}", running["exec_id"].as_str().expect("an id")));
    });
}

const PORTS: [Attack; 2] = [
    Attack {
        name: "the_ports_of_the_gateway_are_taken",
        program: r#"
for address in ("127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1"):
    for port in (53, 80, 443, 3128):
        for option in (None, socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM) if port == 53 else (socket.SOCK_STREAM,):
                s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind)
                try:
                    if option:
                        s.setsockopt(socket.SOL_SOCKET, option, 1)
                    s.bind((address, port))
                    if kind == socket.SOCK_STREAM:
                        s.listen()
                    print("REACHED", address, port, option, kind)
                except OSError as error:
                    print(address, port, error)
                s.close()
"#,
        denied: "",
    },
    Attack {
        name: "the_address_of_a_name_cannot_be_taken_from_it",
        program: r#"
code, addresses = ask("origin.test")
for port in (80, 443):
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            s.setsockopt(socket.SOL_SOCKET, option, 1)
            s.bind((addresses[0], port))
            s.listen()
            print("REACHED", addresses, port)
        except OSError as error:
            print(error)
        s.close()
"#,
        denied: "",
    },
];
