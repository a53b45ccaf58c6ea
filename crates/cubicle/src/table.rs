//! Tables for people, and times as people say them.

use std::fmt;

use cubicle_model::Timestamp;

use crate::failure::printable;

/// As wide as a column gets.
const WIDEST: usize = 60;

/// Rows under a head. Every cell is one line, whatever it holds.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<const N: usize>(head: [&str; N]) -> Self {
        Self { rows: vec![head.map(str::to_owned).into()] }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| one_line(&cell)).into());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width =
            |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// Names and values of one thing.
pub(crate) fn record<const N: usize>(fields: [(&str, String); N]) -> String {
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    fields.iter().map(|(name, value)| format!("{name:<width$}  {}\n", printable(value))).collect()
}

/// Short, and without anything that a terminal would obey or that would break the row.
pub(crate) fn one_line(text: &str) -> String {
    let text = printable(text).replace('\n', "\\n").replace('\t', " ");
    match text.chars().count() <= WIDEST {
        true => text,
        false => text.chars().take(WIDEST - 1).chain(['…']).collect(),
    }
}

/// How long ago something was, as in `3m`.
pub(crate) fn ago(then: Timestamp, now: Timestamp) -> String {
    span(now.duration_since(then).as_secs())
}

/// In how long something will be, as in `in 9m`.
pub(crate) fn ahead(then: Timestamp, now: Timestamp) -> String {
    match then.duration_since(now).as_secs() {
        seconds if seconds <= 0 => "over".into(),
        seconds => format!("in {}", span(seconds)),
    }
}

fn span(seconds: i64) -> String {
    match seconds {
        ..120 => format!("{}s", seconds.max(0)),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A present value, or a dash.
pub(crate) fn or_dash(value: Option<impl fmt::Display>) -> String {
    value.map_or_else(|| "-".into(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_one_line_whatever_its_cells_hold() {
        let mut table = Table::new(["ID", "COMMAND"]);
        table.row(["exec-1".into(), format!("echo \u{1b}[2J\nx {}", "y".repeat(90))]);
        let text = table.to_string();
        assert_eq!(text.lines().count(), 2);
        assert!(text.starts_with("ID      COMMAND\nexec-1  echo"), "{text}");
        assert!(!text.contains('\u{1b}') && text.contains('…'), "{text}");
    }

    #[test]
    fn times_are_said_in_one_unit() {
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        for (seconds, text) in [(-5, "0s"), (90, "90s"), (600, "10m"), (7200, "2h"), (864_000, "10d")] {
            assert_eq!(ago(at(0), at(seconds)), text);
        }
        assert_eq!((ahead(at(600), at(0)), ahead(at(0), at(1))), ("in 10m".into(), "over".into()));
    }
}
