//! How many ready sandboxes a template should have.

use serde::{Deserialize, Serialize};

/// The pool of one template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PoolSpec {
    /// Ready sandboxes when nothing happens.
    pub size: u32,
    /// These stay even where room is scarce; the others are given up for a lease of another template.
    pub min_idle: u32,
    /// The most that demand can make of it.
    pub ceiling: u32,
}

impl Default for PoolSpec {
    fn default() -> Self {
        Self { size: 0, min_idle: 0, ceiling: 64 }
    }
}

/// What was seen of late.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Demand {
    /// Leases of this template.
    pub acquired_per_second: f64,
    /// From the wish for a sandbox until it is ready.
    pub seconds_to_make: f64,
}

/// Bursts are larger than the mean; a few times what is used up while one more is made.
const HEADROOM: f64 = 3.0;

/// How many ready sandboxes there should be now. A pool that was switched off stays off.
pub fn target(spec: PoolSpec, demand: Demand) -> u32 {
    if spec.size == 0 {
        return 0;
    }
    let used_up_meanwhile = demand.acquired_per_second * demand.seconds_to_make * HEADROOM;
    let wanted = spec.size.saturating_add(used_up_meanwhile.max(0.0).ceil() as u32);
    wanted.clamp(spec.size, spec.ceiling.max(spec.size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_grows_with_demand_up_to_its_ceiling() {
        let spec = PoolSpec { size: 8, min_idle: 2, ceiling: 20 };
        let demand = |acquired_per_second, seconds_to_make| Demand { acquired_per_second, seconds_to_make };
        let table = [
            (demand(0.0, 0.004), 8),
            (demand(20.0, 0.004), 9),
            (demand(100.0, 0.01), 11),
            (demand(100.0, 2.0), 20),
            (demand(f64::NAN, 1.0), 8),
            (demand(f64::INFINITY, 1.0), 20),
        ];
        for (demand, expected) in table {
            assert_eq!(target(spec, demand), expected, "{demand:?}");
        }
    }

    #[test]
    fn a_pool_that_is_off_stays_off() {
        let busy = Demand { acquired_per_second: 1000.0, seconds_to_make: 1.0 };
        assert_eq!(target(PoolSpec { size: 0, min_idle: 0, ceiling: 64 }, busy), 0);
    }
}
