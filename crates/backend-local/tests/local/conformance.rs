//! What every backend promises, on the real kernel.

use crate::harness::Host;

cubicle_backend::conformance_tests!(match Host::with_sandboxes().await {
    Some(host) => host,
    None => return,
});
