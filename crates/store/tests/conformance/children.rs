//! Tests of several processes. The others are this same program, told by a variable what to do.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use cubicle_model::NodeId;
use cubicle_store::{Acquire, Acquired, Actor, Context, Store};
use cubicle_tests_postgresql::Cluster;

use crate::world::{Database, World, at_once, bits, in_time, random, room};

const ORDERS: &str = "CUBICLE_STORE_TEST_ORDERS";

/// A process that carries out orders and prints what was acknowledged, a line each.
#[expect(clippy::disallowed_methods, reason = "the test starts itself as another process")]
pub(crate) fn child(orders: &[&str], variables: &[(&str, &str)]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["children::what_another_process_does", "--exact", "--nocapture", "--test-threads=1"])
        .env(ORDERS, orders.join("\n"))
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Does nothing unless it was given orders.
#[test]
#[expect(clippy::disallowed_methods, reason = "the orders come by the environment")]
fn what_another_process_does() {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    let orders: Vec<&str> = orders.split('\n').collect();
    match orders[..] {
        ["acquire", url, node, count] => acquire(url, node.parse().unwrap(), count.parse().unwrap()),
        ["write", path, node] => write(path, node.parse().unwrap()),
        ["connect", url] => connect(url),
        _ => panic!("unknown orders: {orders:?}"),
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "= {line}").unwrap();
    out.flush().unwrap();
}

/// What a child says, line by line.
pub(crate) fn said(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    let out = BufReader::new(child.stdout.take().unwrap());
    out.lines()
        .map_while(Result::ok)
        .filter_map(|line| line.split_once("= ").map(|(_, said)| said.to_owned()))
}

fn context(node: NodeId) -> Context {
    let now = cubicle_model::Timestamp::from_millisecond(1_800_000_000_000).unwrap();
    Context { node, now, actor: Actor::system() }
}

/// Asks as often as it is told, a few at a time.
fn acquire(url: &str, node: NodeId, count: usize) {
    let store = Store::open_postgres(url, random()).unwrap();
    say("ready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    in_time(async move {
        let world = Arc::new(World::for_node(store, node, Database::Postgres(url.into())));
        let tasks = (0..4).map(|_| {
            let world = Arc::clone(&world);
            async move {
                for _ in 0..count / 4 {
                    let ask = Acquire { room: room(60), ..world.ask("acme") };
                    let ask = Acquire { request: ask.lease.to_string(), ..ask };
                    match world.acquire(ask).await {
                        Acquired::Granted { sandbox, .. } => say(&sandbox.id.to_string()),
                        Acquired::Full { .. } => say("full"),
                        other => panic!("{other:?}"),
                    }
                }
            }
        });
        at_once(tasks).await;
    });
}

#[test]
fn two_processes_on_one_postgresql_never_get_the_same_sandbox_nor_exceed_the_room() {
    let Some(cluster) = Cluster::shared() else { return };
    let url = cluster.fresh_database();
    let at = Database::Postgres(url.clone());
    let store = at.open().unwrap();
    let world = in_time(async {
        let world = World::new(at, store).await;
        world.idle("default", 20).await;
        world
    });
    let node = world.node.to_string();
    let mut children = [(); 2].map(|()| child(&["acquire", &url, &node, "60"], &[]));
    let mut saying: Vec<_> = children.iter_mut().map(said).collect();
    for lines in &mut saying {
        assert_eq!(lines.next().as_deref(), Some("ready"));
    }
    for child in &mut children {
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    }
    let all: Vec<String> = saying.into_iter().flatten().collect();
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(all.len(), 120);
    let given: Vec<_> = all.iter().filter(|answer| *answer != "full").collect();
    let distinct: BTreeSet<_> = given.iter().collect();
    assert_eq!((given.len(), distinct.len()), (60, 60));
    assert_eq!(in_time(world.living()).len(), 60);
}

fn write(path: &str, node: NodeId) {
    let store = Store::open_sqlite(path.as_ref(), random()).unwrap();
    in_time(async move {
        let store = Arc::new(store);
        let writers = (0..4).map(|_| {
            let store = Arc::clone(&store);
            async move {
                loop {
                    let subject = cubicle_model::EventId::from_random(bits()).to_string();
                    let (action, outcome) = ("crash".to_owned(), "ok".to_owned());
                    store.record(context(node), action, subject.clone(), outcome, None).await.unwrap();
                    say(&subject);
                }
            }
        });
        let _: Vec<()> = at_once(writers).await;
    });
}

#[test]
fn whatever_sqlite_acknowledged_survives_kill_9() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cubicle.db");
    let at = Database::Sqlite(path.clone());
    let node = in_time(World::new(at.clone(), at.open().unwrap())).node;
    for round in 1..=4 {
        let mut writer = child(&["write", path.to_str().unwrap(), &node.to_string()], &[]);
        let mut lines = said(&mut writer);
        // Long enough for the log to be moved into the file now and then.
        let mut acknowledged: Vec<String> = lines.by_ref().take(1200 * round).collect();
        writer.kill().unwrap();
        writer.wait().unwrap();
        acknowledged.extend(lines);
        assert!(acknowledged.len() >= 1200 * round);
        let store = at.open().unwrap();
        let (kept, verified) = in_time(async {
            let mut verifier = cubicle_model::audit::Verifier::new(node, None);
            let mut kept = BTreeSet::new();
            let mut after = 0;
            loop {
                let some = store.audit_chain(node, after, 1000).await.unwrap();
                let Some(last) = some.last() else { break };
                after = last.seq;
                for entry in some {
                    verifier.take(&entry).unwrap();
                    kept.insert(entry.deed.subject);
                }
            }
            (kept, verifier.finish().unwrap())
        });
        for subject in &acknowledged {
            assert!(kept.contains(subject), "{subject} was acknowledged and is gone");
        }
        assert_eq!(in_time(store.audit_heads()).unwrap(), [verified]);
    }
}

fn connect(url: &str) {
    match Store::open_postgres(url, random()) {
        Ok(store) => {
            in_time(store.ping()).unwrap();
            say("connected");
        }
        Err(fault) => say(&format!("{fault}; {}", fault.way_out().unwrap_or_default())),
    }
}
