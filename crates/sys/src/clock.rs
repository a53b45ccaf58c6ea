//! The two clocks of the guest.

use rustix::time::{ClockId, clock_gettime};

/// Microseconds since 1970.
pub fn unix_micros() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

/// Nanoseconds since the machine started, counted also while it was suspended.
pub fn boot_nanos() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
