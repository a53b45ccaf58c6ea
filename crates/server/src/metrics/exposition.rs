//! The two texts that scrapers read. Who does not ask for OpenMetrics gets the older format, which every tool knows.

use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Version 0.0.4 of Prometheus' own format.
    Prometheus,
    OpenMetrics,
}

impl Form {
    /// What an `Accept` header asks for. A scraper that knows OpenMetrics prefers it to whatever else it names.
    pub(crate) fn asked(accept: &str) -> Self {
        match accept.contains("application/openmetrics-text") {
            true => Self::OpenMetrics,
            false => Self::Prometheus,
        }
    }

    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

pub(crate) fn text(registry: &Registry, form: Form) -> String {
    let mut out = String::new();
    // Writing to memory cannot fail.
    let _ = text::encode(&mut out, registry);
    match form {
        Form::OpenMetrics => out,
        Form::Prometheus => older(&out),
    }
}

/// The older format knows no units and no end, and the name of a counter's family is that of its samples.
fn older(newer: &str) -> String {
    let lines: Vec<&str> = newer.lines().collect();
    let mut out = String::with_capacity(newer.len());
    for (index, line) in lines.iter().enumerate() {
        if line.starts_with("# UNIT ") || *line == "# EOF" {
            continue;
        }
        // The help of a family stands before its type.
        let family = lines[index..].iter().take(2).find_map(|line| line.strip_prefix("# TYPE "));
        let counter = family.and_then(|family| family.strip_suffix(" counter"));
        match counter.filter(|_| line.starts_with("# ")) {
            Some(name) => out.push_str(&line.replacen(name, &format!("{name}_total"), 1)),
            None => out.push_str(line),
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_asks_for_open_metrics_gets_it() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let table = [
            (prometheus, Form::OpenMetrics),
            ("text/plain;version=0.0.4", Form::Prometheus),
            ("*/*", Form::Prometheus),
            ("", Form::Prometheus),
        ];
        for (accept, form) in table {
            assert_eq!(Form::asked(accept), form, "{accept}");
        }
    }

    #[test]
    fn in_the_older_format_a_counter_is_called_as_its_samples_are() {
        let newer = "# HELP a_failures What a_failures are.\n# TYPE a_failures counter\n\
            a_failures_total{reason=\"x\"} 1\n# HELP b_seconds How long.\n# TYPE b_seconds histogram\n\
            # UNIT b_seconds seconds\nb_seconds_sum 0.5\n# HELP c Now.\n# TYPE c gauge\nc 2\n# EOF\n";
        let expected = "# HELP a_failures_total What a_failures are.\n# TYPE a_failures_total counter\n\
            a_failures_total{reason=\"x\"} 1\n# HELP b_seconds How long.\n# TYPE b_seconds histogram\n\
            b_seconds_sum 0.5\n# HELP c Now.\n# TYPE c gauge\nc 2\n";
        assert_eq!(older(newer), expected);
    }
}
