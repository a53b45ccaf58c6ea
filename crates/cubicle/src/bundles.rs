//! Named lists of rules that policies refer to. What an AI provider or a git host is called is known; what a package
//! index is called is not written anywhere here: it comes from the operator's settings, else from what the clients on
//! this host are configured with, else from the clients themselves.

mod ask;
mod debian;
mod ini;
mod node;
pub(crate) mod policies;
mod python;
mod surroundings;

use std::collections::{BTreeMap, BTreeSet};

use cubicle_model::egress::{Bundles, Host, SyntaxError};
use cubicle_model::{Fault, Kind, Name};

use crate::environment::Environment;
use crate::settings::Egress;
use cubicle_model::egress::WebAddress;
use surroundings::Surroundings;

/// Bundles whose hosts are the same everywhere. Only what clients of the service talk to is named: who needs more, as for
/// logging in from inside of a sandbox, defines the bundle anew.
const FIXED: [(&str, &str); 4] = [
    ("anthropic", "allow https://api.anthropic.com\n"),
    (
        "git",
        "allow https://github.com\n\
         allow https://api.github.com\n\
         allow https://codeload.github.com\n\
         allow https://*.githubusercontent.com\n\
         allow https://gitlab.com\n\
         allow https://bitbucket.org\n\
         allow https://codeberg.org\n",
    ),
    (
        "google",
        "allow https://generativelanguage.googleapis.com\n\
         allow https://aiplatform.googleapis.com\n\
         allow https://*-aiplatform.googleapis.com\n",
    ),
    ("openai", "allow https://api.openai.com\n"),
];

/// Every bundle of this host, by its name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Found {
    bundles: BTreeMap<Name, Bundle>,
    /// What clients inside of a sandbox are told, so that they use the index that they may reach.
    variables: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bundle {
    /// Its rules as text; empty when nothing is configured, and then it is an error to use.
    pub(crate) rules: String,
    /// Where they come from, and for an empty one what would fill it.
    pub(crate) from: String,
}

/// Finds every bundle. Files are read, names are resolved, and programs may be started, for some seconds at most: this
/// blocks. Bundles of the operator were checked when the settings were read.
pub(crate) fn found(settings: &Egress, environment: &Environment) -> Found {
    find(settings, &Surroundings::of_this_host(environment))
}

/// Indexes that pip and uv are configured with on this host. Files are read: this blocks.
pub(crate) fn python_indexes(environment: &Environment) -> python::Configured {
    python::configured(&Surroundings::of_this_host(environment))
}

impl Found {
    /// What the server and the gateway are told.
    pub(crate) fn texts(&self) -> BTreeMap<Name, String> {
        self.iter().map(|(name, bundle)| (name.clone(), bundle.rules.clone())).collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Name, &Bundle)> {
        self.bundles.iter()
    }

    /// Variables for clients inside of sandboxes.
    pub(crate) fn variables(&self) -> &BTreeMap<String, String> {
        &self.variables
    }

    /// What policies are resolved with.
    pub(crate) fn parsed(&self) -> Result<Bundles, Fault> {
        let mut bundles = Bundles::default();
        for (name, text) in self.texts() {
            bundles.define(name.clone(), &text).map_err(|error| malformed(&name, &error))?;
        }
        Ok(bundles)
    }

    pub(crate) fn is_empty_bundle(&self, name: &str) -> bool {
        self.iter().any(|(known, bundle)| known.as_str() == name && bundle.rules.is_empty())
    }

    fn put(&mut self, name: &str, bundle: Bundle) {
        self.bundles.insert(name.parse().expect("it is a name"), bundle);
    }
}

/// The text of a bundle that the operator wrote, when it can be read.
pub(crate) fn checked(name: &Name, text: &str) -> Result<(), Fault> {
    Bundles::default().define(name.clone(), text).map_err(|error| malformed(name, &error))
}

fn malformed(name: &Name, error: &SyntaxError) -> Fault {
    Fault::new(Kind::Invalid, format!("in the bundle '@{name}': {error}"))
        .hint("'cubicle egress bundles' shows bundles that can be read; docs/guide/egress.md has the syntax")
}

fn find(settings: &Egress, host: &Surroundings<'_>) -> Found {
    let mut found = Found::default();
    for (name, rules) in FIXED {
        found.put(name, Bundle { rules: rules.to_owned(), from: "built in".to_owned() });
    }
    let is_own = |name: &str| settings.bundles.keys().any(|own| own.as_str() == name);
    // Each may have to ask a program, and these take their time.
    let (python, node, debian) = std::thread::scope(|scope| {
        let python = scope.spawn(|| (!is_own("python")).then(|| python::find(settings, host)));
        let node = scope.spawn(|| (!is_own("node")).then(|| node::find(settings, host)));
        let debian = (!is_own("debian")).then(|| debian::find(host));
        (python.join().ok().flatten(), node.join().ok().flatten(), debian)
    });
    for (name, indexes) in [("python", python), ("node", node), ("debian", debian)] {
        if let Some(indexes) = indexes {
            found.put(name, indexes.bundle(host));
            found.variables.extend(indexes.variables);
        }
    }
    for (name, rules) in &settings.bundles {
        let mut from = format!("egress.bundles.{name} in the settings");
        // One that holds nothing but remarks is as empty as one without a text.
        let mut read = Bundles::default();
        let is_empty =
            read.define(name.clone(), rules).is_ok() && read.get(name).is_some_and(<[_]>::is_empty);
        if is_empty {
            from.push_str(" holds no rule");
        }
        let rules = if is_empty { String::new() } else { rules.trim().to_owned() };
        found.bundles.insert(name.clone(), Bundle { rules, from });
    }
    found
}

/// What clients of a package index reach.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Indexes {
    places: Vec<WebAddress>,
    /// Where each came from, in order and without repetition.
    from: Vec<String>,
    /// What the operator should know beside.
    remarks: Vec<String>,
    /// What clients inside are told, where the index is not the one that they have built in.
    variables: BTreeMap<String, String>,
    /// What to set where there is none.
    way_out: &'static str,
}

impl Indexes {
    fn new(way_out: &'static str) -> Self {
        Self { way_out, ..Self::default() }
    }

    fn add(&mut self, place: WebAddress, from: &str) {
        if place.had_credentials {
            let host = &place.host;
            self.remark(format!(
                "user name and password for {host} are left out; bind a secret to it instead"
            ));
        }
        self.places.push(place);
        if !self.from.iter().any(|known| known == from) {
            self.from.push(from.to_owned());
        }
    }

    /// Tells clients inside of what was added last.
    fn tell(&mut self, variables: &[&str]) {
        let Some(place) = self.places.last() else { return };
        let place = place.to_string();
        for name in variables {
            let value = self.variables.entry((*name).to_owned()).or_default();
            // A variable that takes several has them in one text.
            if !value.is_empty() {
                value.push(' ');
            }
            value.push_str(&place);
        }
    }

    /// Adds what can be read, for clients that are told of it by these variables; the rest is remarked on, and does not stop
    /// a server.
    fn add_text(&mut self, text: &str, from: &str, told_by: &[&str]) {
        match text.parse::<WebAddress>() {
            Ok(place) => {
                self.add(place, from);
                self.tell(told_by);
            }
            Err(wrong) => self.remark(format!("an address in {from} is left out: {wrong}")),
        }
    }

    fn remark(&mut self, remark: String) {
        if !self.remarks.contains(&remark) {
            self.remarks.push(remark);
        }
    }

    fn bundle(&self, host: &Surroundings<'_>) -> Bundle {
        let rules: BTreeSet<String> =
            self.places.iter().map(|place| place.rule(is_private(place, host)).to_string()).collect();
        let rules: Vec<String> = rules.into_iter().collect();
        let mut from = self.from.clone();
        if rules.is_empty() {
            from = vec![format!("nothing is configured on this host; {}", self.way_out)];
        }
        from.extend(self.remarks.iter().cloned());
        Bundle { rules: rules.join("\n"), from: from.join("; ") }
    }
}

/// Whether the name leads to an address that a rule has to name. It was configured by whoever runs this host, so that is
/// meant.
fn is_private(place: &WebAddress, host: &Surroundings<'_>) -> bool {
    let Host::Name(name) = &place.host else { return false };
    (host.resolve)(name).into_iter().any(|address| {
        cubicle_model::egress::address::refused(address)
            .is_some_and(|(standing, _)| standing.is_admitted_as_private())
    })
}

#[cfg(test)]
mod tests;
