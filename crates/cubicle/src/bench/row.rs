//! One row per measurement, and whether it reached its goal.

use std::fmt;

use cubicle_model::{Fault, Kind};
use serde::Serialize;

use super::samples::Samples;

/// What was measured, and against what. What could not be measured has no figures, and `what` says why.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) id: &'static str,
    pub(crate) what: String,
    pub(crate) p50: Option<f64>,
    pub(crate) p99: Option<f64>,
    pub(crate) unit: &'static str,
    pub(crate) versus: Option<String>,
    pub(crate) ratio: Option<f64>,
    /// As in `<= 1.25`; absent for what is only shown for comparison.
    pub(crate) goal: Option<String>,
    /// Absent where there is no goal, or where this run or host does not have the conditions that the goal is for.
    pub(crate) met: Option<bool>,
}

/// What a ratio, or a figure without one, has to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Goal {
    AtMost(f64),
    AtLeast(f64),
}

impl Goal {
    pub(crate) fn met_by(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "<= {most}"),
            Self::AtLeast(least) => write!(f, ">= {least}"),
        }
    }
}

impl Row {
    pub(crate) fn measured(
        id: &'static str,
        what: impl Into<String>,
        samples: &Samples,
        unit: &'static str,
    ) -> Self {
        let (p50, p99) = (samples.p50(), samples.p99());
        Self { id, what: what.into(), p50, p99, unit, versus: None, ratio: None, goal: None, met: None }
    }

    /// A measurement that did not come about. Where the host refuses what it needs, no verdict is given; any other
    /// failure of what has a goal counts as a miss.
    pub(crate) fn failed(
        id: &'static str,
        what: &str,
        unit: &'static str,
        goal: Option<Goal>,
        fault: &Fault,
    ) -> Self {
        let row = Self::measured(id, format!("{what}; not measured: {fault}"), &Samples::default(), unit);
        let refused = fault.kind() == Kind::Denied;
        let met = goal.filter(|_| !refused).map(|_| false);
        Self { goal: goal.map(|goal| goal.to_string()), met, ..row }
    }

    /// This p50 ÷ the other's.
    pub(crate) fn over(mut self, versus: &str, other: &Samples) -> Self {
        self.versus = Some(versus.to_owned());
        self.ratio = self.p50.zip(other.p50()).map(|(this, that)| this / that);
        self
    }

    /// Judges the ratio, or the p50 where nothing is compared.
    pub(crate) fn judged(mut self, goal: Goal) -> Self {
        let value = if self.versus.is_some() { self.ratio } else { self.p50 };
        self.goal = Some(goal.to_string());
        self.met = value.map(|value| goal.met_by(value));
        self
    }

    /// Shows the goal without a verdict, because it is for other conditions than those of this run.
    pub(crate) fn unjudged(mut self, goal: Goal, because: &str) -> Self {
        self.goal = Some(goal.to_string());
        self.met = None;
        self.what = format!("{} (no verdict: {because})", self.what);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(value: f64) -> Samples {
        let mut samples = Samples::default();
        samples.push(value);
        samples
    }

    #[test]
    fn a_goal_is_judged_by_the_ratio_where_there_is_one() {
        let table = [
            (1.2, Goal::AtMost(1.25), true),
            (1.25, Goal::AtMost(1.25), true),
            (1.3, Goal::AtMost(1.25), false),
            (1.8, Goal::AtLeast(1.8), true),
            (1.7, Goal::AtLeast(1.8), false),
        ];
        for (ratio, goal, met) in table {
            let row =
                Row::measured("a", "", &samples(ratio * 4.0), "ms").over("b", &samples(4.0)).judged(goal);
            assert_eq!(row.met, Some(met), "{ratio} {goal}");
        }
        let row = Row::measured("cycles", "", &samples(400.0), "/s").judged(Goal::AtLeast(300.0));
        assert_eq!((row.met, row.goal.as_deref()), (Some(true), Some(">= 300")));
    }

    #[test]
    fn a_ratio_to_nothing_is_no_verdict() {
        let row = Row::measured("a", "", &samples(1.0), "ms").over("b", &Samples::default());
        let row = row.judged(Goal::AtMost(1.0));
        assert_eq!((row.ratio, row.met), (None, None));
    }

    #[test]
    fn what_the_host_refuses_is_no_miss_but_what_breaks_is() {
        let goal = Some(Goal::AtMost(1.5));
        let refused = Row::failed("a", "bind", "ms", goal, &Fault::new(Kind::Denied, "no cgroups"));
        assert_eq!((refused.met, refused.p50), (None, None));
        assert_eq!(refused.what, "bind; not measured: no cgroups");
        let broken = Row::failed("a", "bind", "ms", goal, &Fault::new(Kind::Internal, "lost"));
        assert_eq!(broken.met, Some(false));
        let peer = Row::failed("peer", "run", "ms", None, &Fault::new(Kind::Internal, "lost"));
        assert_eq!(peer.met, None);
    }

    #[test]
    fn a_run_under_other_conditions_has_a_goal_and_no_verdict() {
        let row = Row::measured("a", "w", &samples(1.0), "ms").unjudged(Goal::AtMost(2.0), "a quick run");
        assert_eq!((row.goal.as_deref(), row.met), (Some("<= 2"), None));
        assert_eq!(row.what, "w (no verdict: a quick run)");
    }

    #[test]
    fn the_json_form_has_every_field_and_null_for_what_is_absent() {
        let row = Row::measured("cycles", "life cycles", &samples(400.0), "/s");
        let expected = serde_json::json!({
            "id": "cycles", "what": "life cycles", "p50": 400.0, "p99": 400.0, "unit": "/s",
            "versus": null, "ratio": null, "goal": null, "met": null,
        });
        assert_eq!(serde_json::to_value(row).unwrap(), expected);
    }
}
