//! What the product talks about: ids, placements, limits, execs, receipts and errors.
//!
//! Nothing here reads a clock, a file, the environment or a random source: those are passed in, so that every
//! decision of the product is a value that a test can look at.

pub mod error;
pub mod exec;
pub mod id;
pub mod isolation;
pub mod limits;
pub mod placement;
pub mod receipt;

pub use error::{Fault, Kind};
pub use exec::{Command, ExecSpec, Exit, Stdin, TtySize};
pub use id::{ExecId, InstanceId, ParseIdError, SandboxId};
pub use isolation::{Isolation, Trust};
pub use limits::{Limit, LimitRequest, Limits};
pub use placement::{Binding, FileToWrite, Lifetime, Listener, Medium, Mount, Placement, Root};
pub use receipt::Receipt;
