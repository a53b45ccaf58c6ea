//! The journal of one sandbox: an append-only file of checksummed records, written before anything is delivered.
//!
//! `seq` is the only cursor: it grows by one with each record. The file can be read while it is written and after its
//! sandbox ended, by any number of readers.

pub mod reader;
pub mod record;
mod scan;
#[cfg(test)]
mod tests;
pub mod writer;

pub use reader::{ReadError, Reader};
pub use record::{Draft, Header, Kind, Record};
pub use writer::{Appended, Journal, OpenError};
