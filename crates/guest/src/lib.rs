//! Both ends of the sandbox contract: what is said on a connection, the journal, the daemon that is pid 1 of every
//! sandbox (feature `daemon`) and the host's client (feature `client`).

#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "daemon")]
pub mod daemon;
pub mod hello;
pub mod journal;
pub mod wire;
