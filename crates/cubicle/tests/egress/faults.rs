//! What goes wrong: the gateway dies, the server dies, descriptors run out, and others do not keep to any protocol.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::client::{With, eventually};
use crate::inside::Inside;
use crate::world::{World, in_a_world, installed};

const PRLIMIT: &str = "/usr/bin/prlimit";

/// Reads a download to its end, whatever that is, and says in files how far it is.
const DOWNLOAD: &str = r#"
s = socket.create_connection(PROXY, timeout=60)
s.sendall(b"GET http://origin.test/flood HTTP/1.1\r\nHost: origin.test\r\nConnection: close\r\n\r\n")
count, end = 0, "closed"
try:
    while True:
        piece = s.recv(4096)
        if not piece:
            break
        count += len(piece)
        if count > 100000 and not os.path.exists("/workspace/begun"):
            open("/workspace/begun", "w").close()
            while not os.path.exists("/workspace/go-on"):
                time.sleep(0.01)
except OSError as error:
    end = str(error)
open("/workspace/end.new", "w").write(f"{count} {end}")
os.rename("/workspace/end.new", "/workspace/end")
"#;

fn begin(inside: &Inside<'_>, program: &str, more: Value) -> String {
    let mut asked = json!({ "command": inside.with_prelude(program), "background": true });
    asked.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
    inside.exec(&asked)["exec_id"].as_str().expect("an id").to_owned()
}

fn wait_for_file(inside: &Inside<'_>, name: &str) -> String {
    eventually(name, || {
        let text = inside.sh(&format!("cat /workspace/{name} 2>/dev/null || echo absent"));
        (text != "absent\n").then_some(text)
    })
}

fn requests(bill: &Value) -> u64 {
    let lines = bill["lines"].as_array().expect("a bill has lines");
    lines.iter().map(|line| line["requests"].as_u64().expect("a number")).sum()
}

#[test]
fn a_gateway_that_is_killed_takes_its_connections_with_it_and_the_next_one_has_the_same_policy() {
    in_a_world(|world| {
        let inside = world.sandbox("allow origin.test");
        begin(&inside, DOWNLOAD, json!({}));
        wait_for_file(&inside, "begun");
        let before = requests(&inside.bill());
        assert_eq!(before, 1);
        let first = world.gateway().expect("it is in use");
        world.kill_gateway();
        inside.sh("touch /workspace/go-on");
        let end = wait_for_file(&inside, "end");
        let count: u64 = end.split(' ').next().and_then(|text| text.parse().ok()).expect("a count");
        assert!(count < 100 << 20, "the download broke off: {end}");
        // The next request finds a gateway, and it decides as the one before.
        assert!(inside.prints("get('http://origin.test/again')").contains("REACHED GET /again"));
        let denied = inside.prints("get('http://evil.test/ATTACK')");
        assert!(denied.contains("403 Forbidden") && !world.outside.heard_of("ATTACK"), "{denied}");
        assert_ne!(world.gateway(), Some(first));
        assert_eq!(requests(&inside.bill()), before + 1, "the bill goes on");
        // Its end is noticed by the process or by a call that fails, whichever comes first.
        let said = world.server.said();
        assert!(["gateway ended", "is given up"].iter().any(|text| said.contains(text)), "{said}");
    });
}

#[test]
fn while_a_gateway_hangs_nothing_leaves_and_then_another_takes_its_place() {
    in_a_world(|world| {
        let inside = world.sandbox("allow origin.test");
        let waiting = r#"
while not os.path.exists("/workspace/hangs"):
    time.sleep(0.01)
direct("93.184.216.34", 80)
direct("10.1.2.3", 80)
open("/workspace/asking", "w").close()
for host in ("origin.test", "evil.test"):
    answer = talk(f"GET http://{host}/waited HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n", wait=60)
    open(f"/workspace/{host}", "w").write(answer)
open("/workspace/asked", "w").close()
"#;
        assert!(inside.prints("get('http://origin.test/first')").contains("REACHED"));
        begin(&inside, waiting, json!({}));
        let hanging = world.gateway().expect("it is in use");
        let gateway = Pid::from_raw(hanging).expect("a pid");
        kill_process(gateway, Signal::STOP).expect("it is ours");
        let put = world.server.request(
            "PUT",
            &format!("/api/v1/sandboxes/{}/files?path=hangs", inside.sandbox),
            b"",
            &With::default(),
        );
        assert!(put.status < 300, "{put:?}");
        // Calls to it are given up, and it with them. Until then its clients wait.
        eventually("another gateway", || {
            let living = world.gateway();
            if living.is_none_or(|living| living == hanging) {
                assert!(!world.outside.heard_of("waited"));
            }
            world.server.said().contains("does not answer and is given up").then_some(())
        });
        wait_for_file(&inside, "asked");
        assert!(inside.sh("cat /workspace/origin.test").contains("REACHED GET /waited"));
        assert!(inside.sh("cat /workspace/evil.test").contains("403 Forbidden"));
        assert_eq!(world.trapped(), Vec::<String>::new());
        // The one that was given up has nobody to serve.
        kill_process(gateway, Signal::CONT).expect("it is ours");
        eventually("its end", || (!fs::exists(format!("/proc/{hanging}")).unwrap_or(true)).then_some(()));
    });
}

/// Asks again and again, and keeps the last answer of each host.
const PERSISTENT: &str = r#"
rounds = 0
while not os.path.exists("/workspace/stop"):
    for host in ("origin.test", "other.test", "api.test", "evil.test"):
        answer = talk(f"GET http://{host}/round HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n", wait=2)
        word = "reached" if "REACHED" in answer else "denied" if "403 Forbidden" in answer else "nothing"
        with open("/workspace/new", "w") as file:
            file.write(word)
        os.rename("/workspace/new", f"/workspace/{host}")
    rounds += 1
    with open("/workspace/new", "w") as file:
        file.write(str(rounds))
    os.rename("/workspace/new", "/workspace/rounds")
    time.sleep(0.05)
"#;

fn answers(inside: &Inside<'_>) -> String {
    inside.sh("cd /workspace; for host in origin other api evil; do cat $host.test 2>/dev/null || echo -n asking; echo -n ' '; done")
}

fn kill_and_start_again(world: &mut World) {
    let gateway = world.gateway().expect("it is in use");
    world.server.kill();
    eventually("the gateway ends with its control plane", || {
        (!fs::exists(format!("/proc/{gateway}")).expect("/proc can be read")).then_some(())
    });
    assert_eq!(world.trapped(), Vec::<String>::new());
    world.outside.forget();
    world.server.start_again();
}

#[test]
fn a_server_that_is_killed_comes_back_with_the_policies_that_held() {
    in_a_world(|world| {
        // One whose policy was said with the lease, one whose policy was changed, one with an exec of its own policy.
        let leased = world.sandbox("allow origin.test");
        let changed = world.sandbox("allow evil.test");
        changed.allow("allow other.test");
        let execed = world.sandbox("none");
        let ids = [&leased, &changed, &execed].map(|inside| (inside.lease.clone(), inside.sandbox.clone()));
        begin(&leased, PERSISTENT, json!({}));
        begin(&changed, PERSISTENT, json!({}));
        let exec = begin(&execed, PERSISTENT, json!({ "policy": "allow api.test" }));
        for inside in [&leased, &changed, &execed] {
            wait_for_file(inside, "rounds");
        }
        let bill = requests(&leased.bill());
        assert!(bill > 0);
        kill_and_start_again(world);
        let [leased, changed, execed] = ids.map(|(lease, sandbox)| world.known(&lease, &sandbox));
        for inside in [&leased, &changed, &execed] {
            inside.sh("rm -f /workspace/*.test");
        }
        for (inside, expected) in [
            (&leased, "reached denied denied denied"),
            (&changed, "denied reached denied denied"),
            (&execed, "denied denied reached denied"),
        ] {
            eventually(expected, || (answers(inside).trim() == expected).then_some(()));
        }
        assert!(!world.outside.said_at("93.184.216.35").concat().contains("/round"));
        assert_eq!(execed.egress()["said_by"], "exec");
        assert!(requests(&leased.bill()) > 0, "what was used is still on the bill, or counts on");
        world.server.delete(&format!("/api/v1/execs/{exec}"));
        eventually("the lease's own policy", || (execed.egress()["said_by"] == "lease").then_some(()));
        let none = execed.prints("get('http://api.test/ATTACK')");
        assert!(none.contains("403 Forbidden") && !world.outside.heard_of("ATTACK"), "{none}");
        for inside in [&leased, &changed] {
            inside.sh("touch /workspace/stop");
        }
    });
}

/// Changes how many descriptors a process may have, as the user who it belongs to.
fn limit_descriptors(pid: i32, most: usize) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let id = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a process has an owner");
        line.split_whitespace().next().and_then(|id| id.parse().ok()).expect("a number")
    };
    #[expect(clippy::disallowed_methods, reason = "a test changes the limits of a process")]
    let mut prlimit = Command::new(PRLIMIT);
    prlimit.args(["--pid", &pid.to_string(), &format!("--nofile={most}:")]).uid(id("Uid:")).gid(id("Gid:"));
    let done = prlimit.output().expect("it is installed");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn a_gateway_without_descriptors_says_so_and_recovers() {
    if !installed(PRLIMIT) {
        return;
    }
    in_a_world(|world| {
        let inside = world.sandbox("allow origin.test; allow tcp://origin.test:7000");
        assert!(inside.prints("get('http://origin.test/first')").contains("REACHED"));
        let gateway = world.gateway().expect("it is in use");
        let enough = 10_000;
        // The kernel counts from the lowest free number, so that the highest that is in use says what is left.
        let highest = || {
            let held = fs::read_dir(format!("/proc/{gateway}/fd")).expect("this is root").flatten();
            let numbers = held.filter_map(|entry| entry.file_name().to_str()?.parse::<usize>().ok());
            let numbers: std::collections::BTreeSet<usize> = numbers.collect();
            (0..).find(|number| !numbers.contains(number)).expect("there is a free one")
        };
        // Room for the client's own connection, and for nothing that leads on.
        limit_descriptors(gateway, highest() + 1);
        let answer = inside.prints("through(tunnel('origin.test:7000'), 'x')");
        assert!(answer.contains("503 Service Unavailable"), "{answer}");
        assert!(answer.contains("the gateway is out of file descriptors"), "{answer}");
        limit_descriptors(gateway, enough);
        assert!(inside.prints("get('http://origin.test/again')").contains("REACHED GET /again"));
        // Clients that find no descriptor at all wait, and are served when there is one.
        limit_descriptors(gateway, highest());
        begin(&inside, "open('/workspace/answer', 'w').write(get('http://origin.test/waited'))\n", json!({}));
        world.server.waits_to_say("egress cannot accept connections");
        limit_descriptors(gateway, enough);
        eventually("an answer", || {
            inside
                .sh("cat /workspace/answer 2>/dev/null || true")
                .contains("REACHED GET /waited")
                .then_some(())
        });
    });
}

#[test]
fn every_way_of_not_being_answered_is_told_to_the_client() {
    in_a_world(|world| {
        let policy = "allow *.test; allow tcp://*.test:9; inspect expired.test; inspect wrong-name.test; inspect untrusted.test";
        let inside = world.sandbox(policy);
        for (program, expected) in [
            ("get('http://nowhere.test/')", "the name does not resolve"),
            ("get('http://origin.test/reset')", "the connection broke before the answer came"),
            ("get('http://origin.test/garbage')", "its answer is not HTTP, or its head is too long"),
            ("get('http://origin.test/headers')", "its answer is not HTTP, or its head is too long"),
            ("through(tunnel('origin.test:9'), '')", "the connection was refused"),
            ("https('expired.test')", "its certificate has expired"),
            ("https('wrong-name.test')", "its certificate is for another name"),
            ("https('untrusted.test')", "its certificate was issued by nobody whom this host trusts"),
        ] {
            let https = r#"
def https(host):
    return through(secure(tunnel(f"{host}:443"), host), f"GET /x HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
"#;
            let answer = inside.prints(&format!("{https}{program}"));
            assert!(answer.contains("502 Bad Gateway") && answer.contains(expected), "{program}: {answer}");
        }
        // Half an answer is not taken for a whole one.
        let half = inside.prints("print(len(get('http://origin.test/half').split('\\r\\n\\r\\n', 1)[1]))");
        assert!(half.contains("content-length: 1000") && half.ends_with("\n4\n"), "{half}");
        let lines = inside.bill();
        let failures = lines["lines"].as_array().expect("lines").iter().filter(|line| line["failures"] != 0);
        assert!(failures.count() >= 6, "{lines}");
        assert_eq!(lines["denials"], json!([]), "none of it is a denial");
        // Who hangs for ever keeps nobody else waiting.
        begin(&inside, "get('http://origin.test/hang')", json!({}));
        assert!(inside.prints("get('http://origin.test/well')").contains("REACHED"));
    });
}

#[test]
fn a_policy_with_a_mistake_is_refused_with_its_place_and_the_old_one_stays() {
    in_a_world(|world| {
        let inside = world.sandbox("allow origin.test");
        let path = format!("/api/v1/leases/{}/egress", inside.lease);
        for (policy, expected) in [
            ("allow origin.test\nallow evil.test:99999", "line 2, column"),
            ("allow origin.test; alow evil.test", "line 1, column 20"),
            ("open\nallow http://", "line 2"),
            ("allow @nonesuch", "nonesuch"),
        ] {
            let refused = world.server.put(&path, &json!({ "policy": policy }));
            assert_eq!(refused.refused(400), "invalid", "{policy}");
            assert!(refused.text.contains(expected), "{policy}: {refused:?}");
            let lease = world.server.post("/api/v1/leases", &json!({ "egress": { "policy": policy } }));
            assert_eq!(lease.refused(400), "invalid", "{policy}");
        }
        assert!(inside.egress()["policy"].as_str().expect("a policy").contains("allow origin.test"));
        assert!(inside.prints("get('http://origin.test/well')").contains("REACHED GET /well"));
        assert!(inside.prints("get('http://evil.test/ATTACK')").contains("403 Forbidden"));
    });
}
