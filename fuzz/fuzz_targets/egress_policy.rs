#![no_main]

#[path = "../egress_targets.rs"]
#[allow(dead_code)]
mod targets;

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::egress_policy(input));
