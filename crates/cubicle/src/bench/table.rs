//! Rows as a table, for a terminal and for a document.

use super::machine::Machine;
use super::row::Row;

pub(crate) fn render(rows: &[Row], machine: &Machine) -> String {
    let mut text = format!(
        "{:<16} {:>10} {:>10} {:<5} {:<12} {:>7} {:<8} {:<4} what\n",
        "id", "p50", "p99", "unit", "versus", "ratio", "goal", "met"
    );
    for row in rows {
        let cells = Cells::of(row);
        text.push_str(&format!(
            "{:<16} {:>10} {:>10} {:<5} {:<12} {:>7} {:<8} {:<4} {}\n",
            row.id,
            cells.p50,
            cells.p99,
            row.unit,
            cells.versus,
            cells.ratio,
            cells.goal,
            cells.met,
            row.what
        ));
    }
    text.push('\n');
    for (name, found) in machine.lines() {
        text.push_str(&format!("{name:<12} {found}\n"));
    }
    text
}

pub(crate) fn render_markdown(rows: &[Row], machine: &Machine) -> String {
    let mut text = String::from(
        "| id | what | p50 | p99 | unit | versus | ratio | goal | met |\n\
         |---|---|---:|---:|---|---|---:|---|---|\n",
    );
    for row in rows {
        let cells = Cells::of(row);
        // A bar in a text would end its cell.
        let plain = |text: &str| text.replace('|', "\\|").replace('\n', " ");
        let (what, versus) = (plain(&row.what), plain(&cells.versus));
        text.push_str(&format!(
            "| {} | {what} | {} | {} | {} | {versus} | {} | {} | {} |\n",
            row.id, cells.p50, cells.p99, row.unit, cells.ratio, cells.goal, cells.met
        ));
    }
    text.push('\n');
    for (name, found) in machine.lines() {
        text.push_str(&format!("- {name}: {found}\n"));
    }
    text
}

/// What is shown of a row; a dash stands for what is absent.
struct Cells {
    p50: String,
    p99: String,
    versus: String,
    ratio: String,
    goal: String,
    met: &'static str,
}

impl Cells {
    fn of(row: &Row) -> Self {
        let dash = || "-".to_owned();
        let figure = |value: Option<f64>| value.map_or_else(dash, |value| format!("{value:.3}"));
        Self {
            p50: figure(row.p50),
            p99: figure(row.p99),
            versus: row.versus.clone().unwrap_or_else(dash),
            ratio: row.ratio.map_or_else(dash, |ratio| format!("{ratio:.2}")),
            goal: row.goal.clone().unwrap_or_else(dash),
            met: match row.met {
                None => "-",
                Some(true) => "yes",
                Some(false) => "NO",
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::row::Goal;
    use crate::bench::samples::Samples;

    fn samples(value: f64) -> Samples {
        let mut samples = Samples::default();
        samples.push(value);
        samples
    }

    #[test]
    fn a_missed_goal_stands_out() {
        let row = Row::measured("exec.warm", "exec in a warm sandbox", &samples(1.5), "ms")
            .over("posix_spawn", &samples(1.0))
            .judged(Goal::AtMost(1.25));
        let text = render(std::slice::from_ref(&row), &Machine::default());
        assert!(text.contains(" 1.50 ") && text.contains(" NO "), "{text}");
        let text = render_markdown(&[row], &Machine::default());
        assert!(text.contains("| 1.50 | <= 1.25 | NO |"), "{text}");
    }

    #[test]
    fn what_was_not_measured_is_a_dash_and_not_a_zero() {
        let row = Row::measured("cycles", "a|b", &Samples::default(), "/s").over("c|d", &Samples::default());
        let text = render_markdown(&[row], &Machine::default());
        assert!(text.contains("| cycles | a\\|b | - | - | /s | c\\|d | - | - | - |"), "{text}");
    }
}
