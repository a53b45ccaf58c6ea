//! `cubicle audit`: a log that was tampered with is found out.

use std::path::PathBuf;

use crate::server::Server;

/// Does something to the log of a server that is not running.
fn tamper(server: &mut Server, sql: &str) {
    server.stop();
    let database = server.host.data_dir().join("server/cubicle.db");
    let connection = rusqlite::Connection::open(database).expect("the database is a file");
    assert!(connection.execute(sql, []).expect("the log is a table") > 0, "{sql}");
    drop(connection);
    server.up();
}

/// A server with a few entries, and the file with its heads.
fn with_entries() -> Option<(Server, PathBuf)> {
    let server = Server::start()?;
    for _ in 0..3 {
        let lease = server.lease();
        server.says(&["lease", "release", &lease]);
    }
    let heads = server.host.scratch().join("heads.json");
    std::fs::write(&heads, server.says(&["audit", "heads"])).expect("scratch is writable");
    Some((server, heads))
}

#[test]
fn a_log_that_nobody_touched_is_whole() {
    let Some((server, heads)) = with_entries() else { return };
    server.lease();
    let heads = heads.to_str().expect("a plain name");
    assert!(server.says(&["audit", "verify", "--head", heads]).contains("whole"));
    let verdicts = server.json(&["audit", "verify", "--json"]);
    assert_eq!(verdicts[0]["whole"], true, "{verdicts}");
    let table = server.says(&["audit", "ls", "--action", "lease.acquire"]);
    assert_eq!(table.lines().count(), 1 + 4, "{table}");
    let exported = server.says(&["audit", "export"]);
    let last: serde_json::Value =
        serde_json::from_str(exported.lines().last().expect("lines")).expect("JSON");
    assert_eq!(last["seq"], verdicts[0]["seq"], "{last}");
}

#[test]
fn a_changed_entry_is_named() {
    let Some((mut server, _)) = with_entries() else { return };
    tamper(&mut server, "UPDATE audit SET actor = 'eve' WHERE seq = 4");
    let output = server.cubicle(&["audit", "verify"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("entry 4 was changed"), "{output:?}");
}

#[test]
fn a_removed_entry_is_named() {
    let Some((mut server, _)) = with_entries() else { return };
    tamper(&mut server, "DELETE FROM audit WHERE seq = 3");
    let output = server.cubicle(&["audit", "verify"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("entry 3 is missing"), "{output:?}");
}

#[test]
fn a_cut_tail_is_noticed_by_a_head_that_was_kept() {
    let Some((mut server, heads)) = with_entries() else { return };
    tamper(&mut server, "DELETE FROM audit WHERE seq > 3");
    let output = server.cubicle(&["audit", "verify", "--head", heads.to_str().expect("a plain name")]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("BROKEN"), "{output:?}");
}
