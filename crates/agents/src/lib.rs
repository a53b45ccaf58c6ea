//! What a host gives to AI workers: the programs of the agents, installed once and mounted read-only, and `run-task`, the
//! worker that runs them inside.

pub mod worker;
