//! What the figures depend on: processor, kernel, cgroups, and what else runs.

use std::fs;

/// Facts by name, in the order in which they are shown.
#[derive(Debug, Clone, Default)]
pub(crate) struct Machine {
    facts: Vec<(&'static str, String)>,
}

impl Machine {
    /// Reads what does not change during a run, and the load before it.
    pub(crate) fn look(user: &str) -> Self {
        let facts = vec![
            ("cpu", cpu_model(&read("/proc/cpuinfo")).unwrap_or("unknown").to_owned()),
            ("cores", cores().to_string()),
            ("kernel", read("/proc/sys/kernel/osrelease").trim().to_owned()),
            (
                "memory",
                read("/proc/meminfo").lines().next().unwrap_or("").replace("MemTotal:", "").trim().to_owned(),
            ),
            ("cgroups", cgroups(&read("/proc/self/mounts"))),
            ("user", user.to_owned()),
            ("cubicle", env!("CARGO_PKG_VERSION").to_owned()),
            ("load before", load()),
        ];
        Self { facts }
    }

    pub(crate) fn look_again(&mut self) {
        self.facts.push(("load after", load()));
    }

    pub(crate) fn add(&mut self, name: &'static str, found: String) {
        self.facts.push((name, found));
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.facts.iter().map(|(name, found)| (*name, found.as_str()))
    }
}

/// The cores that this process may use, as with taskset(1).
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn load() -> String {
    read("/proc/loadavg").split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

fn cpu_model(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, model)| model.trim())
}

/// The state of the cgroups, from the table of mounts. `favordynmods` decides whether moving a process into a cgroup
/// takes microseconds or milliseconds.
fn cgroups(mounts: &str) -> String {
    let of_type = |wanted: &'static str| {
        mounts.lines().filter_map(move |line| {
            let mut fields = line.split(' ').skip(2);
            let (kind, options) = (fields.next()?, fields.next()?);
            (kind == wanted).then_some(options)
        })
    };
    let (v1, v2) = (of_type("cgroup").count(), of_type("cgroup2").count());
    let state = match (v1, v2) {
        (0, 0) => return "none mounted".into(),
        (0, _) => "v2".to_owned(),
        (v1, 0) => format!("v1, {v1} hierarchies"),
        (v1, _) => format!("hybrid: v1 with {v1} hierarchies, and v2"),
    };
    let favoured = of_type("cgroup").chain(of_type("cgroup2"));
    let favoured =
        favoured.filter(|options| options.split(',').any(|option| option == "favordynmods")).count();
    match favoured {
        0 => format!("{state}; favordynmods off"),
        all if all == v1 + v2 => format!("{state}; favordynmods on"),
        some => format!("{state}; favordynmods on in {some} of {}", v1 + v2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_the_cgroups_is_read_from_the_mounts() {
        let v1 = "cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n";
        let v2 = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";
        let favoured = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,favordynmods 0 0\n";
        let table = [
            ("tmpfs /tmp tmpfs rw 0 0\n".to_owned(), "none mounted"),
            (v1.to_owned(), "v1, 1 hierarchies; favordynmods off"),
            (v2.to_owned(), "v2; favordynmods off"),
            (favoured.to_owned(), "v2; favordynmods on"),
            (format!("{v1}{v2}"), "hybrid: v1 with 1 hierarchies, and v2; favordynmods off"),
            (format!("{v1}{favoured}"), "hybrid: v1 with 1 hierarchies, and v2; favordynmods on in 1 of 2"),
        ];
        for (mounts, expected) in table {
            assert_eq!(cgroups(&mounts), expected);
        }
    }

    #[test]
    fn the_processor_is_named_by_its_model() {
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n"), Some("Some CPU @ 2 GHz"));
        assert_eq!(cpu_model("processor\t: 0\n"), None);
    }
}
