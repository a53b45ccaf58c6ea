//! `run-task` as a process: real agents against a scripted model, any command as an agent, repositories, and the webhook.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests start the worker and are told by variables what there is"
)]

mod claude;
mod custom;
mod gemini;
mod harness;
mod repository;
mod webhook;
