//! Sandboxes on the real kernel: the promises of every backend, and what is particular to this one.

mod at_once;
mod bad_input;
mod conformance;
mod endings;
mod harness;
mod late_binding;
mod leftovers;
mod ordinary_user;
mod workspaces;
