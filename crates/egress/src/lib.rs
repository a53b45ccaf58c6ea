//! The only way out of a sandbox: an HTTP proxy, SOCKS5, and names that lead to it, with a policy per sandbox.
//!
//! Which sandbox a connection belongs to is known by the listener it came in on, and by nothing that the client says.
//! Credentials are added here, on the way out, and never enter a sandbox. What was reached is on a bill.

mod bill;
mod connect;
pub mod control;
pub mod credentials;
pub mod dns;
mod forward;
mod gateway;
mod hello;
mod http;
mod intercept;
mod limits;
mod listen;
mod log;
mod outlet;
mod outside;
pub mod redact;
mod refusal;
mod relay;
pub mod secret;
pub mod socks;
mod stream;
mod tunnel;
mod upstream;

pub use gateway::{Gateway, Listeners};
pub use intercept::{Authority, AuthorityFiles};
pub use limits::Limits;
pub use log::{AccessLine, AccessLog};
pub use outlet::{Base, Terms};
pub use outside::{Dial, Names, Outside, SystemDial, SystemNames, roots};
pub use stream::Stream;
