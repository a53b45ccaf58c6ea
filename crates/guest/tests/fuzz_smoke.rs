//! The guest's fuzz targets without a fuzzer.
#![allow(clippy::unwrap_used, reason = "what fails here fails a test")]

#[path = "../../../fuzz/smoke.rs"]
mod smoke;
#[path = "../../../fuzz/targets.rs"]
mod targets;

fn run(name: &str) {
    let (_, target) = targets::ALL.iter().find(|(given, _)| *given == name).unwrap();
    smoke::run(name, *target);
}

#[test]
fn changed_journal_records_do_no_harm() {
    run("journal_record");
}

#[test]
fn changed_openings_do_no_harm() {
    run("hello");
}

#[test]
fn changed_events_of_contexts_do_no_harm() {
    run("context_event");
}

#[test]
fn changed_requests_do_no_harm() {
    run("http_request");
}

#[test]
fn changed_exec_specs_do_no_harm() {
    run("exec_spec");
}

#[test]
fn changed_answers_do_no_harm() {
    run("client_response");
}

#[test]
fn changed_patches_and_patterns_do_no_harm() {
    run("tools");
}

#[test]
fn changed_archives_and_paths_stay_inside_of_their_directory() {
    // One after the other: they share a directory.
    run("path_resolve");
    run("tar_in");
    targets::remove_world();
}
