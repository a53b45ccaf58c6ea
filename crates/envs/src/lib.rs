//! Python environments of the host: built once from requirements, content-addressed, and seen read-only by any sandbox.
//!
//! Requirements become a lock (`uv`, wheels only), the lock becomes a key, and the key names a tree that never changes.
//! Nothing that a package brings is run here: not its build, and not the code that an interpreter runs when it starts.

mod allowed;
mod build;
mod environments;
mod evict;
mod files;
mod flight;
mod index;
mod interpreter;
mod key;
mod lock;
mod manifest;
mod modules;
mod names;
mod parts;
mod prepare;
mod program;
mod requirements;
mod resolve;
mod sdist;
mod settings;
mod tree;
mod trouble;
mod uv;
mod work;

pub use allowed::AllowedPackages;
pub use environments::{Cache, Counts, Environments, InUse, Listed, Ready, Wanted};
pub use evict::{Budget, Candidate, evict};
pub use index::{AllowedIndex, Index, Indexes};
pub use interpreter::{Interpreter, Prefix};
pub use key::EnvKey;
pub use prepare::{Tools, prepare, tools};
pub use requirements::Requirements;
pub use sdist::{BUILD_PROGRAM, BuiltWheel, SdistBuilder, SdistJob};
pub use settings::{EnvSettings, ServiceUser};
