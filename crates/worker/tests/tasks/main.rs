//! `run-task` as a process: real agents against a scripted model, any command as an agent, repositories, and the webhook.

mod claude;
mod custom;
mod gemini;
mod harness;
mod repository;
mod webhook;
