//! Environments made by a real uv from wheels that the tests write themselves.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod faults;
mod hostile;
mod index;
mod keeping;
mod making;
mod parts;
mod processes;
mod site;
mod sources;
mod wheels;
