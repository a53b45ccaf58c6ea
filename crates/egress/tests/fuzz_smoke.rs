//! The gateway's fuzz targets without a fuzzer.
#![allow(clippy::unwrap_used, reason = "what fails here fails a test")]

#[path = "../../../fuzz/smoke.rs"]
mod smoke;
#[path = "../../../fuzz/egress_targets.rs"]
mod targets;

#[test]
fn changed_socks_messages_do_no_harm() {
    smoke::run("egress_socks", targets::egress_socks);
}

#[test]
fn changed_questions_for_names_do_no_harm() {
    smoke::run("egress_dns", targets::egress_dns);
}

#[test]
fn changed_policies_do_no_harm() {
    smoke::run("egress_policy", targets::egress_policy);
}
