//! Which secret goes to which host, in which form, for which sandboxes. The gateway carries it out.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Name;
use crate::egress::HostName;

const LONGEST_WORD: usize = 128;
/// Headers that say where a request goes and where it ends; a secret there would break or redirect it.
const NOT_FOR_SECRETS: [&str; 13] = [
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

/// How a request carries a secret: `bearer`, `header:x-api-key`, `basic:USER` or `query:key`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Form {
    /// `Authorization: Bearer …`
    Bearer,
    /// The value alone in a header, whose name is in lower case.
    Header(String),
    /// `Authorization: Basic …`, with this user name.
    Basic { user: String },
    /// A parameter of the query.
    Query(String),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAForm {
    #[error("a secret goes out as 'bearer', 'header:NAME', 'basic:USER' or 'query:NAME'")]
    Unknown,
    #[error("this cannot be the name of a header")]
    Header,
    #[error("a secret cannot be the header '{0}', which steers the request itself")]
    Steering(String),
    #[error("the user of a basic authorization has 1 to {LONGEST_WORD} visible characters, and no colon")]
    User,
    #[error(
        "a parameter of a query is called by 1 to {LONGEST_WORD} of A-Z, a-z, 0-9, '-', '.', '_' and '~'"
    )]
    Parameter,
}

impl FromStr for Form {
    type Err = NotAForm;

    fn from_str(given: &str) -> Result<Self, NotAForm> {
        if given == "bearer" {
            return Ok(Self::Bearer);
        }
        let (kind, word) = given.split_once(':').ok_or(NotAForm::Unknown)?;
        let made_of =
            |allowed: fn(u8) -> bool| (1..=LONGEST_WORD).contains(&word.len()) && word.bytes().all(allowed);
        match kind {
            "header" => {
                let name = word.to_ascii_lowercase();
                if !made_of(is_of_header) {
                    return Err(NotAForm::Header);
                }
                if NOT_FOR_SECRETS.contains(&name.as_str()) {
                    return Err(NotAForm::Steering(name));
                }
                Ok(Self::Header(name))
            }
            "basic" if made_of(|c| (c.is_ascii_graphic() || c >= 0x80) && c != b':') => {
                Ok(Self::Basic { user: word.into() })
            }
            "basic" => Err(NotAForm::User),
            "query" if made_of(|c| c.is_ascii_alphanumeric() || b"-._~".contains(&c)) => {
                Ok(Self::Query(word.into()))
            }
            "query" => Err(NotAForm::Parameter),
            _ => Err(NotAForm::Unknown),
        }
    }
}

/// RFC 9110: a token.
fn is_of_header(c: u8) -> bool {
    c.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&c)
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bearer => f.write_str("bearer"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Basic { user } => write!(f, "basic:{user}"),
            Self::Query(parameter) => write!(f, "query:{parameter}"),
        }
    }
}

impl TryFrom<String> for Form {
    type Error = NotAForm;

    fn try_from(given: String) -> Result<Self, NotAForm> {
        given.parse()
    }
}

impl From<Form> for String {
    fn from(form: Form) -> Self {
        form.to_string()
    }
}

/// The part of a request that a form fills.
#[derive(Debug, PartialEq, Eq)]
enum Part<'a> {
    Header(&'a str),
    Query(&'a str),
}

impl Form {
    fn fills(&self) -> Part<'_> {
        match self {
            Self::Bearer | Self::Basic { .. } => Part::Header("authorization"),
            Self::Header(name) => Part::Header(name),
            Self::Query(parameter) => Part::Query(parameter),
        }
    }

    /// Whether a value can stand where this form puts it.
    pub fn can_carry(&self, value: &[u8]) -> bool {
        match self {
            Self::Bearer | Self::Header(_) => value.iter().all(|c| *c == b'\t' || !c.is_ascii_control()),
            Self::Basic { .. } | Self::Query(_) => true,
        }
    }
}

/// Where a secret goes, and for whom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CredentialBinding {
    /// The whole name: there are no wildcards, so that no other host can look like it.
    pub host: HostName,
    pub port: u16,
    pub form: Form,
    /// Programs inside reach the host as `http://BASE.egress.internal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Name>,
    /// The secret goes out without TLS too, and a base URL leads to plain HTTP.
    #[serde(default)]
    pub even_plain: bool,
    /// The sandboxes that it is for; absent means those of every template of the tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub templates: Option<BTreeSet<Name>>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadBinding {
    #[error("0 is not a port")]
    Port,
    #[error("a binding for no template does nothing; leave 'templates' out for all of them")]
    NoTemplate,
}

impl CredentialBinding {
    pub const PORT: u16 = 443;

    /// To a host over TLS, for every template.
    pub fn new(host: HostName, form: Form) -> Self {
        Self { host, port: Self::PORT, form, base: None, even_plain: false, templates: None }
    }

    pub fn check(&self) -> Result<(), BadBinding> {
        match &self.templates {
            _ if self.port == 0 => Err(BadBinding::Port),
            Some(templates) if templates.is_empty() => Err(BadBinding::NoTemplate),
            _ => Ok(()),
        }
    }

    pub fn is_for(&self, template: &Name) -> bool {
        self.templates.as_ref().is_none_or(|templates| templates.contains(template))
    }

    /// Why both cannot hold, if nothing says which of them counts.
    pub fn contradicts(&self, other: &Self) -> Option<Contradiction> {
        let equals = match (&self.templates, &other.templates) {
            (None, None) => true,
            (Some(one), Some(two)) => one.intersection(two).next().is_some(),
            // The one that names the template counts.
            (None, Some(_)) | (Some(_), None) => false,
        };
        match equals {
            true if self.fills_the_same(other) => {
                Some(Contradiction::Part { host: self.host.clone(), port: self.port })
            }
            true if self.base.is_some() && self.base == other.base && !self.same_service(other) => {
                self.base.clone().map(Contradiction::Base)
            }
            _ => None,
        }
    }

    fn same_service(&self, other: &Self) -> bool {
        (&self.host, self.port) == (&other.host, other.port)
    }

    fn fills_the_same(&self, other: &Self) -> bool {
        self.same_service(other) && self.form.fills() == other.form.fills()
    }
}

/// Two bindings of which nobody could say which one counts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Contradiction {
    #[error("goes to {host}:{port} in the same part of the request")]
    Part { host: HostName, port: u16 },
    #[error("has the base '{0}' for another host")]
    Base(Name),
}

/// A binding that holds for a sandbox. Its base is absent where another binding gives the same one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InForce<'a, Key> {
    pub key: Key,
    pub binding: &'a CredentialBinding,
    pub base: Option<&'a Name>,
}

/// What holds for sandboxes of a template: one that names the template goes before one for all, and otherwise the one that
/// was given earlier.
pub fn in_force<'a, Key>(
    given: impl IntoIterator<Item = (Key, &'a CredentialBinding)>,
    template: &Name,
) -> Vec<InForce<'a, Key>> {
    let mut given: Vec<_> = given.into_iter().filter(|(_, binding)| binding.is_for(template)).collect();
    // Stable, so that the order counts among equals.
    given.sort_by_key(|(_, binding)| binding.templates.is_none());
    let mut held: Vec<InForce<'a, Key>> = Vec::new();
    for (key, binding) in given {
        if held.iter().any(|other| other.binding.fills_the_same(binding)) {
            continue;
        }
        let is_free = |base: &&Name| held.iter().all(|other| other.base != Some(*base));
        let base = binding.base.as_ref().filter(is_free);
        held.push(InForce { key, binding, base });
    }
    held
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    /// `HOST FORM [BASE] [@TEMPLATE…]`
    fn binding(text: &str) -> CredentialBinding {
        let mut words = text.split(' ');
        let mut next = || words.next().unwrap();
        let mut binding = CredentialBinding::new(next().parse().unwrap(), next().parse().unwrap());
        for word in words {
            match word.strip_prefix('@') {
                Some(template) => _ = binding.templates.get_or_insert_default().insert(name(template)),
                None => binding.base = Some(name(word)),
            }
        }
        binding
    }

    #[test]
    fn a_form_survives_text() {
        for text in ["bearer", "header:x-api-key", "basic:ada", "basic:ädä", "query:key"] {
            let form: Form = text.parse().unwrap();
            assert_eq!(form.to_string(), text);
            let json = serde_json::to_string(&form).unwrap();
            assert_eq!(json, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<Form>(&json).unwrap(), form);
        }
        assert_eq!("header:X-Api-Key".parse::<Form>().unwrap().to_string(), "header:x-api-key");
    }

    #[test]
    fn what_is_not_a_form_is_refused() {
        for bad in [
            "",
            "Bearer",
            "bearer:x",
            "header",
            "header:",
            "header:a b",
            "header:a\r\nb",
            "header:ä",
            "header:Host",
            "header:content-length",
            "header:Transfer-Encoding",
            "basic:",
            "basic:a:b",
            "basic:a\nb",
            "query:",
            "query:a=b",
            "query:a&b",
            "cookie:a",
            &format!("header:{}", "x".repeat(129)),
        ] {
            assert!(bad.parse::<Form>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_line_feed_cannot_stand_in_a_header() {
        for (form, value, expected) in [
            ("bearer", "sk-1", true),
            ("bearer", "a\nb", false),
            ("header:x", "a\rb", false),
            ("header:x", "a\tb", true),
            ("header:x", "\u{7f}", false),
            ("basic:u", "a\nb", true),
            ("query:k", "a\nb", true),
        ] {
            let form: Form = form.parse().unwrap();
            assert_eq!(form.can_carry(value.as_bytes()), expected, "{form} {value:?}");
        }
    }

    #[test]
    fn bindings_that_leave_open_which_one_counts_contradict_each_other() {
        let table = [
            ("a.example bearer", "b.example bearer", false),
            ("a.example bearer", "a.example header:x-key", false),
            ("a.example bearer", "a.example bearer", true),
            ("a.example bearer", "a.example basic:ada", true),
            ("a.example bearer", "a.example header:authorization", true),
            ("a.example query:k", "a.example query:k", true),
            ("a.example query:k", "a.example header:k", false),
            ("a.example bearer", "a.example bearer @python", false),
            ("a.example bearer @node", "a.example bearer @python", false),
            ("a.example bearer @node @python", "a.example bearer @python", true),
            ("a.example bearer api", "b.example bearer api", true),
            ("a.example bearer api", "a.example query:k api", false),
            ("a.example bearer api @node", "b.example bearer api @python", false),
        ];
        for (one, two, expected) in table {
            let (a, b) = (binding(one), binding(two));
            assert_eq!(a.contradicts(&b).is_some(), expected, "{one} / {two}");
            assert_eq!(b.contradicts(&a).is_some(), expected, "{two} / {one}");
        }
        let other_port = CredentialBinding { port: 8443, ..binding("a.example bearer") };
        assert_eq!(other_port.contradicts(&binding("a.example bearer")), None);
    }

    #[test]
    fn the_binding_that_names_the_template_counts_and_then_the_earlier_one() {
        let check = |given: &[&str], template: &str, expected: &[(usize, bool)]| {
            let bindings: Vec<_> = given.iter().map(|text| binding(text)).collect();
            let held = in_force(bindings.iter().enumerate(), &name(template));
            let found: Vec<_> = held.iter().map(|one| (one.key, one.base.is_some())).collect();
            assert_eq!(found, expected, "{given:?} for {template}");
        };
        check(&["a.example bearer api", "b.example bearer"], "node", &[(0, true), (1, false)]);
        check(&["a.example bearer", "a.example bearer @node"], "node", &[(1, false)]);
        check(&["a.example bearer", "a.example bearer @node"], "python", &[(0, false)]);
        check(&["a.example bearer", "a.example basic:ada"], "python", &[(0, false)]);
        check(&["a.example bearer @node"], "python", &[]);
        check(&["a.example bearer api", "b.example bearer api @node"], "node", &[(1, true), (0, false)]);
        check(&["a.example bearer api", "a.example query:k api"], "node", &[(0, true), (1, false)]);
    }

    #[test]
    fn a_binding_that_can_do_nothing_is_refused() {
        assert_eq!(binding("a.example bearer").check(), Ok(()));
        let no_port = CredentialBinding { port: 0, ..binding("a.example bearer") };
        assert_eq!(no_port.check(), Err(BadBinding::Port));
        let nobody = CredentialBinding { templates: Some(BTreeSet::new()), ..binding("a.example bearer") };
        assert_eq!(nobody.check(), Err(BadBinding::NoTemplate));
    }

    #[test]
    fn a_binding_survives_json_and_says_only_what_was_said() {
        let plain = binding("a.example bearer");
        let json = r#"{"host":"a.example","port":443,"form":"bearer","even_plain":false}"#;
        assert_eq!(serde_json::to_string(&plain).unwrap(), json);
        for text in ["a.example bearer", "a.example header:x api @node @python"] {
            let json = serde_json::to_string(&binding(text)).unwrap();
            assert_eq!(serde_json::from_str::<CredentialBinding>(&json).unwrap(), binding(text));
        }
    }
}
