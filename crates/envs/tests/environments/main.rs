//! Environments made by a real uv from wheels that the tests write themselves.

mod faults;
mod hostile;
mod index;
mod keeping;
mod making;
mod processes;
mod site;
mod sources;
mod wheels;
