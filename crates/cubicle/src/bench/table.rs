//! One row per measurement, as JSON and as a table.

use serde::Serialize;

/// What was measured, and against what. `ratio` is this ÷ `versus`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) id: &'static str,
    pub(crate) what: String,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) unit: &'static str,
    pub(crate) versus: Option<String>,
    pub(crate) ratio: Option<f64>,
    /// As in `<= 1.25`; absent for what is only shown for comparison.
    pub(crate) goal: Option<String>,
    pub(crate) met: Option<bool>,
}

pub(crate) fn render(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<16} {:>10} {:>10} {:<5} {:<22} {:>7} {:<9} {:<4} what\n",
        "id", "p50", "p99", "unit", "versus", "ratio", "goal", "met"
    );
    for row in rows {
        let ratio = row.ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"));
        let met = match row.met {
            None => "-",
            Some(true) => "yes",
            Some(false) => "NO",
        };
        text.push_str(&format!(
            "{:<16} {:>10.2} {:>10.2} {:<5} {:<22} {:>7} {:<9} {:<4} {}\n",
            row.id,
            row.p50,
            row.p99,
            row.unit,
            row.versus.as_deref().unwrap_or("-"),
            ratio,
            row.goal.as_deref().unwrap_or("-"),
            met,
            row.what
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_goal_stands_out() {
        let row = Row {
            id: "exec.warm",
            what: "exec in a warm sandbox".into(),
            p50: 600.0,
            p99: 900.0,
            unit: "us",
            versus: Some("posix_spawn".into()),
            ratio: Some(1.5),
            goal: Some("<= 1.25".into()),
            met: Some(false),
        };
        let text = render(&[row]);
        assert!(text.contains("1.50") && text.contains(" NO "), "{text}");
    }
}
