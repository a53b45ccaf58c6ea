//! `cubicle task`.

use crate::server::{Server, complaint};

/// Runs a task of a shell to its end: the exit code, and what was printed.
fn run(server: &Server, options: &[&str], script: &str) -> (Option<i32>, String) {
    let command = [&["task", "run"], options, &["do it", "--", "sh", "-c", script]].concat();
    let output = server.cubicle(&command);
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_task_is_followed_to_its_end_shown_and_done_again() {
    let Some(server) = Server::start_with(&["--workers"]) else { return };
    let (code, said) = run(&server, &[], "echo at work; echo all fine > /task/output/summary.md");
    assert_eq!(code, Some(0), "{said}");
    for part in ["at work", "success", "summary.md", "text/markdown", "all fine"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let (code, said) = run(&server, &[], "echo broken >&2; exit 7");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("failed"), "{said}");

    let all = server.json(&["task", "list", "--json"]);
    let id = all[1]["task_id"].as_str().expect("an id").to_owned();
    assert_eq!((&all[0]["status"], &all[1]["status"]), (&"failed".into(), &"success".into()));
    assert!(server.says(&["task", "list"]).contains(&id));
    assert_eq!(server.says(&["task", "files", &id, "summary.md"]), "all fine");
    assert!(server.says(&["task", "logs", &id]).contains("at work"));
    assert_eq!(server.json(&["task", "show", "--json", &id])["summary"], "all fine");
    let again = server.says(&["task", "retry", &id]);
    assert!(again.starts_with("task-") && again.trim() != id, "{again}");
    assert!(server.says(&["task", "logs", "--follow", again.trim()]).contains("at work"));
}

#[test]
fn a_task_that_is_not_waited_for_can_be_cancelled() {
    let Some(server) = Server::start_with(&["--workers"]) else { return };
    let (code, said) = run(&server, &["--detach"], "sleep 600");
    assert_eq!(code, Some(0), "{said}");
    server.says(&["task", "cancel", said.trim()]);
    server.says(&["task", "logs", "--follow", said.trim()]);
    assert_eq!(server.json(&["task", "show", "--json", said.trim()])["task_id"], said.trim());
}

#[test]
fn what_cannot_be_run_is_refused_with_the_way_out() {
    let Some(server) = Server::start_with(&["--workers"]) else { return };
    let missing = server.cubicle(&["task", "run", "do it"]);
    assert!(complaint(&missing).contains("cubicle agents install claude"), "{missing:?}");
    let both = server.cubicle(&["task", "run", "--agent", "gemini", "do it", "--", "true"]);
    assert!(complaint(&both).contains("custom"), "{both:?}");
}

#[test]
fn a_server_without_workers_says_how_to_have_some() {
    let Some(server) = Server::start() else { return };
    let refused = server.cubicle(&["task", "run", "do it", "--", "true"]);
    assert!(complaint(&refused).contains("cubicle up --workers"), "{refused:?}");
}
