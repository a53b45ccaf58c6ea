use std::io::Read;

use cubicle_guest::journal::Kind;
use cubicle_model::ExecId;
use serde_json::{Value, json};

use crate::support::*;

const BINARY: &str = "Accept: application/x-cubicle-journal\r\n";

#[test]
fn a_reader_that_attaches_at_any_seq_gets_the_same_bytes() {
    let sandbox = Sandbox::start();
    let id = ExecId::from_random([2; 16]);
    let script = "for i in 1 2 3 4 5 6 7 8; do echo line $i; echo err $i >&2; sleep 0.01; done";
    let other = sandbox.background(&json!({ "command": script, "cwd": "/" }));
    let mut client = sandbox.connect();
    let spec = json!({ "command": script, "cwd": "/", "exec_id": id }).to_string();
    let live = client.request("POST", "/exec", BINARY, spec.as_bytes());
    sandbox.wait_for(other, "eof");
    let all = frames(&live.body);
    let next = sandbox.request("GET", "/health", b"").value()["journal"]["next_seq"].as_u64().unwrap();
    for from in 1..next {
        let reply = client.request("GET", &format!("/exec/{id}?from={from}"), BINARY, b"");
        let expected: Vec<Frame> = all.iter().filter(|frame| frame.seq >= from).cloned().collect();
        assert_eq!(frames(&reply.body), expected, "from {from}");
    }
    let whole = client.request("GET", "/journal?follow=false", BINARY, b"");
    let on_disk = std::fs::read(sandbox.journal_path()).unwrap();
    assert_eq!(whole.body, on_disk[16..], "byte for byte as on disk");
    let of_exec: Vec<Frame> =
        frames(&whole.body).into_iter().filter(|frame| frame.exec == all[0].exec).collect();
    assert_eq!(of_exec, all);
}

#[test]
fn a_large_output_arrives_whole_in_order_with_its_offsets() {
    let sandbox = Sandbox::start();
    let frames = sandbox.shell("head -c 20000000 /dev/zero | tr '\\0' 'q'; echo end >&2");
    let mut offset = 0;
    for frame in frames.iter().filter(|frame| frame.kind == Kind::Stdout) {
        assert_eq!(frame.stream_offset, offset);
        assert!(frame.payload.iter().all(|byte| *byte == b'q'));
        offset += frame.payload.len() as u64;
    }
    assert_eq!(offset, 20_000_000);
    assert_eq!(payload(&frames, Kind::Eof), json!({ "stdout": 20_000_000, "stderr": 4 }));
}

#[test]
fn a_short_exec_goes_out_in_one_piece_to_whoever_waits_for_its_end() {
    let sandbox = Sandbox::start();
    let spec = json!({ "command": "sleep 0.1", "cwd": "/" }).to_string();
    let last_chunk = "\r\n0\r\n\r\n";
    // The first piece, as the kernel gives it out.
    let first_piece = |target: &str| {
        let mut client = sandbox.connect();
        client.send("POST", target, BINARY, spec.as_bytes());
        let mut piece = vec![0; 16 * 1024];
        let length = client.stream.get_mut().read(&mut piece).unwrap();
        String::from_utf8_lossy(&piece[..length]).into_owned()
    };
    let (usual, held) = (first_piece("/exec"), first_piece("/exec?hold_ms=1000"));
    assert!(usual.starts_with("HTTP/1.1 200") && !usual.ends_with(last_chunk), "{usual}");
    assert!(held.starts_with("HTTP/1.1 200") && held.ends_with(last_chunk), "{held}");
}

#[test]
fn what_is_held_back_goes_out_when_the_end_does_not_come() {
    let sandbox = Sandbox::start();
    let id = ExecId::from_random([4; 16]);
    let spec = json!({ "command": "echo here; read x", "cwd": "/", "stdin": "stream", "exec_id": id });
    let mut client = sandbox.connect();
    client.send("POST", "/exec?hold_ms=50", BINARY, spec.to_string().as_bytes());
    assert_eq!(client.reply_head().0, 200);
    assert!(client.chunk().is_some());
    assert_eq!(sandbox.status(id)["state"], json!("running"));
    sandbox.request("POST", &format!("/exec/{id}/stdin?close=true"), b"");
    while client.chunk().is_some() {}
    for bad in ["1001", "-1", "1.5", ""] {
        let refused = sandbox.json("POST", &format!("/exec?hold_ms={bad}"), &json!({ "command": "true" }));
        assert_eq!((refused.status, refused.code().as_str()), (400, "invalid"), "{bad}");
    }
}

#[test]
fn lines_and_events_say_the_same() {
    let sandbox = Sandbox::start();
    let id = sandbox.background(&json!({ "command": "echo one; echo 'two\nthree' >&2; exit 4", "cwd": "/" }));
    sandbox.wait_for(id, "eof");
    let mut client = sandbox.connect();
    let target = format!("/exec/{id}");
    let lines = client.request("GET", &target, "Accept: application/x-ndjson\r\n", b"");
    assert!(lines.head.contains("Content-Type: application/x-ndjson"), "{}", lines.head);
    let lines: Vec<Value> = lines.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (last, records) = lines.split_last().unwrap();
    assert_eq!(last, &json!({ "exit": 4 }));
    let events = client.request("GET", &target, "Accept: text/event-stream\r\n", b"");
    assert!(events.head.contains("Content-Type: text/event-stream"), "{}", events.head);
    let events = events.text();
    let events: Vec<&str> = events.split_terminator("\n\n").collect();
    assert_eq!(events.len(), records.len());
    for (event, record) in events.iter().zip(records) {
        let fields: Vec<&str> = event.lines().collect();
        assert_eq!(fields[0], format!("id: {}", record["seq"]));
        assert_eq!(fields[1], format!("event: {}", record["kind"].as_str().unwrap()));
        let data: Value = serde_json::from_str(fields[2].strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(&data, record);
    }
    let last_id = records.last().unwrap()["seq"].as_u64().unwrap() - 1;
    let headers = format!("Accept: text/event-stream\r\nLast-Event-ID: {last_id}\r\n");
    assert_eq!(client.request("GET", &target, &headers, b"").text().matches("event: ").count(), 1);
}

#[test]
fn every_way_to_end_has_its_last_line() {
    let sandbox = Sandbox::start();
    for (spec, line) in [
        (json!({ "command": "exit 0", "cwd": "/" }), "{\"exit\":0}"),
        (json!({ "command": "kill -9 $$", "cwd": "/" }), "{\"exit\":null,\"signal\":9}"),
        (
            json!({ "command": "sleep 100", "cwd": "/", "timeout_seconds": 0.1 }),
            "{\"exit\":null,\"timed_out\":true}",
        ),
    ] {
        let reply = sandbox.json("POST", "/exec", &spec);
        assert_eq!(reply.text().lines().last(), Some(line));
    }
}

#[test]
fn a_reader_that_is_gone_in_the_middle_changes_nothing_for_the_exec() {
    let sandbox = Sandbox::start();
    let id = ExecId::from_random([3; 16]);
    let spec = json!({ "command": "for i in $(seq 200); do echo $i; sleep 0.002; done; echo end", "cwd": "/", "exec_id": id });
    let mut client = sandbox.connect();
    client.send("POST", "/exec", BINARY, spec.to_string().as_bytes());
    client.reply_head();
    client.chunk().unwrap();
    drop(client);
    let status = sandbox.wait_for(id, "eof");
    assert_eq!(status["exit"], json!({ "code": 0 }));
    let reply = sandbox.connect().request("GET", &format!("/exec/{id}"), BINARY, b"");
    let text = stdout(&frames(&reply.body));
    assert_eq!(text.lines().count(), 201);
    assert!(text.ends_with("200\nend\n"));
}

#[test]
fn a_reader_that_does_not_read_blocks_neither_the_exec_nor_others() {
    let sandbox = Sandbox::start();
    let id = ExecId::from_random([4; 16]);
    let spec = json!({ "command": "head -c 8000000 /dev/zero", "cwd": "/", "exec_id": id });
    let mut slow = sandbox.connect();
    slow.send("POST", "/exec", BINARY, spec.to_string().as_bytes());
    let mut slow_text = sandbox.connect();
    slow_text.send("GET", "/journal", "", b"");
    assert_eq!(sandbox.wait_for(id, "eof")["exit"], json!({ "code": 0 }));
    assert_eq!(stdout(&sandbox.shell("echo other")), "other\n");
    let reply = slow.reply();
    assert_eq!(output(&frames(&reply.body), Kind::Stdout).len(), 8_000_000);
}

#[test]
fn many_readers_get_the_same_stream() {
    let sandbox = Sandbox::start();
    let id = sandbox
        .background(&json!({ "command": "for i in $(seq 50); do seq 1000; sleep 0.002; done", "cwd": "/" }));
    let readers: Vec<_> = (0..8)
        .map(|_| {
            let mut client = sandbox.connect();
            std::thread::spawn(move || client.request("GET", &format!("/exec/{id}"), BINARY, b"").body)
        })
        .collect();
    let bodies: Vec<Vec<u8>> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
    assert!(bodies.iter().all(|body| *body == bodies[0]));
    assert_eq!(stdout(&frames(&bodies[0])).lines().count(), 50_000);
}

#[test]
fn the_whole_journal_can_be_followed() {
    let sandbox = Sandbox::start();
    let mut follower = sandbox.connect();
    follower.send("GET", "/journal", BINARY, b"");
    follower.reply_head();
    assert_eq!(frames(&follower.chunk().unwrap())[0].kind, Kind::Place);
    sandbox.shell("echo seen");
    let mut seen = Vec::new();
    while !seen.iter().any(|frame: &Frame| frame.kind == Kind::Eof) {
        seen.extend(frames(&follower.chunk().unwrap()));
    }
    assert_eq!(stdout(&seen), "seen\n");
}

#[test]
fn a_connection_carries_many_execs() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.connect();
    for n in 0..50 {
        let spec = json!({ "command": ["echo", n.to_string()], "cwd": "/" }).to_string();
        let reply = client.request("POST", "/exec", BINARY, spec.as_bytes());
        assert_eq!(stdout(&frames(&reply.body)), format!("{n}\n"));
    }
    assert_eq!(sandbox.request("GET", "/exec", b"").value()["execs"].as_array().unwrap().len(), 50);
}
