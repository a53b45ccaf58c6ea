//! What somebody wants installed: names with versions and nothing else.

use std::str::FromStr;

use cubicle_model::{Fault, Kind};
use pep508_rs::{Requirement, VerbatimUrl, VersionOrUrl};

use crate::AllowedPackages;

const MOST: usize = 200;
/// The parser keeps every marker that it has seen for as long as the process lives, so that they have to be short.
const LONGEST: usize = 256;
const WAY_OUT: &str = "write a name with versions, as in pandas>=2.0";

/// Requirements that can be resolved without reaching anything but an index. Equal sets are equal values, whatever order
/// and spelling they came in.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Requirements {
    lines: Vec<String>,
    names: Vec<String>,
}

impl Requirements {
    pub fn parse(given: &[String], allowed: &AllowedPackages) -> Result<Self, Fault> {
        if given.is_empty() {
            return Err(refused("an environment needs at least one requirement"));
        }
        if given.len() > MOST {
            return Err(Fault::new(
                Kind::Invalid,
                format!("{} requirements are more than the {MOST} that an environment may have", given.len()),
            ));
        }
        let mut lines = Vec::with_capacity(given.len());
        let mut names = Vec::with_capacity(given.len());
        for (index, text) in given.iter().enumerate() {
            let requirement =
                one(text.trim()).map_err(|why| refused(format!("requirement {}{why}", index + 1)))?;
            if !allowed.includes(&requirement.name) {
                let list: Vec<&str> = allowed.names().take(20).collect();
                return Err(Fault::new(
                    Kind::Denied,
                    format!("the package '{}' is not one that this server allows", requirement.name),
                )
                .hint(format!("allowed are {}", list.join(", "))));
            }
            names.push(requirement.name.to_string());
            lines.push(canonical(requirement));
        }
        for list in [&mut lines, &mut names] {
            list.sort();
            list.dedup();
        }
        Ok(Self { lines, names })
    }

    /// In their canonical spelling and order.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// Names of what was asked for, normalised.
    pub fn names(&self) -> &[String] {
        &self.names
    }
}

fn refused(message: impl Into<String>) -> Fault {
    Fault::new(Kind::Invalid, message).hint(WAY_OUT)
}

/// The error goes behind "requirement N". An address is not repeated: it may hold a password.
fn one(text: &str) -> Result<Requirement<VerbatimUrl>, String> {
    const ADDRESS: &str = " is a URL or a path; only names of packages are taken";
    if text.is_empty() {
        return Err(" is empty".into());
    }
    if text.len() > LONGEST {
        return Err(format!(" is longer than {LONGEST} bytes"));
    }
    if text.chars().any(char::is_control) {
        return Err(" has a line break or another control character".into());
    }
    if text.starts_with('-') {
        return Err(format!(", '{text}', is an option; options are not taken"));
    }
    if is_address(text) {
        return Err(ADDRESS.into());
    }
    let parsed = Requirement::from_str(text)
        .map_err(|error| format!(", '{text}', cannot be read: {}", first_line(&error.to_string())))?;
    if matches!(parsed.version_or_url, Some(VersionOrUrl::Url(_))) {
        return Err(ADDRESS.into());
    }
    Ok(parsed)
}

fn is_address(text: &str) -> bool {
    let before_marker = text.split(';').next().unwrap_or_default();
    before_marker.contains(['/', '\\', '@', '$', '{', '}'])
        || text.contains("://")
        || text.starts_with('.')
        || [".whl", ".zip", ".tar.gz", ".txt"].iter().any(|ending| before_marker.trim_end().ends_with(ending))
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn canonical(mut requirement: Requirement<VerbatimUrl>) -> String {
    requirement.extras.sort();
    requirement.extras.dedup();
    if let Some(VersionOrUrl::VersionSpecifier(specifiers)) = &requirement.version_or_url {
        let mut sorted: Vec<String> = specifiers.iter().map(ToString::to_string).collect();
        sorted.sort();
        sorted.dedup();
        // The parts of a specifier mean the same in any order.
        if let Ok(specifiers) = sorted.join(",").parse() {
            requirement.version_or_url = Some(VersionOrUrl::VersionSpecifier(specifiers));
        }
    }
    requirement.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(given: &[&str]) -> Result<Requirements, Fault> {
        let given: Vec<String> = given.iter().map(|text| (*text).to_owned()).collect();
        Requirements::parse(&given, &AllowedPackages::default())
    }

    #[test]
    fn equal_sets_are_equal_whatever_their_order_and_spelling() {
        let table: [(&[&str], &[&str]); 5] = [
            (&["pandas>=2.0", "numpy"], &["numpy", "pandas>=2.0"]),
            (&["  Pandas >= 2.0 , <3 "], &["pandas>=2.0,<3"]),
            (&["zope.interface", "zope_interface", "ZOPE-interface"], &["zope-interface"]),
            (&["requests[socks,security]"], &["requests[security,socks]"]),
            (&["a; python_version>'3.9'"], &["a ; python_full_version >= '3.10'"]),
        ];
        for (given, expected) in table {
            assert_eq!(parse(given).unwrap().lines(), expected, "{given:?}");
        }
    }

    #[test]
    fn what_is_not_a_name_with_versions_is_refused_with_its_number() {
        for (given, part) in [
            ("", "requirement 2 is empty"),
            ("   ", "is empty"),
            ("-e .", "is an option"),
            ("--index-url https://ada:hunter2@a.example", "is an option"),
            ("-r other.txt", "is an option"),
            ("git+https://a.example/x.git", "is a URL or a path"),
            ("x @ git+https://a.example/x.git", "is a URL or a path"),
            ("x @ file:///etc/passwd", "is a URL or a path"),
            ("x@https://ada:hunter2@a.example/x.whl", "is a URL or a path"),
            ("https://a.example/x-1.0-py3-none-any.whl", "is a URL or a path"),
            ("./x", "is a URL or a path"),
            ("../x", "is a URL or a path"),
            ("/tmp/x", "is a URL or a path"),
            ("x-1.0-py3-none-any.whl", "is a URL or a path"),
            ("${HOME}", "is a URL or a path"),
            ("a\nb", "line break"),
            ("a\\", "is a URL or a path"),
            ("a --hash=sha256:00", "cannot be read"),
            ("a # remark", "cannot be read"),
            ("a b", "cannot be read"),
            ("a==", "cannot be read"),
            ("a; os_nam == 'x'", "cannot be read"),
            ("é", "cannot be read"),
        ] {
            let fault = parse(&["fine", given]).unwrap_err();
            assert_eq!(fault.kind(), Kind::Invalid, "{given}");
            assert!(fault.message().contains(part), "{given}: {fault}");
            assert!(fault.message().contains("requirement 2"), "{given}: {fault}");
        }
        let fault = parse(&["x@https://ada:hunter2@a.example/x.whl"]).unwrap_err();
        assert!(!format!("{fault:?}").contains("hunter2"));
    }

    #[test]
    fn there_are_bounds() {
        assert!(parse(&[]).is_err());
        assert!(parse(&vec!["a"; MOST]).is_ok());
        assert!(parse(&vec!["a"; MOST + 1]).is_err());
        assert!(parse(&["a".repeat(LONGEST).as_str()]).is_ok());
        assert!(parse(&["a".repeat(LONGEST + 1).as_str()]).is_err());
    }

    #[test]
    fn only_allowed_packages_may_be_asked_for_however_they_are_spelled() {
        let allowed = AllowedPackages::parse(["Scikit_Learn", "pandas"]).unwrap();
        let ask = |text: &str| Requirements::parse(&[text.to_owned()], &allowed);
        assert!(ask("scikit.learn>=1").is_ok());
        assert!(ask("PANDAS[excel]").is_ok());
        let fault = ask("numpy").unwrap_err();
        assert_eq!(fault.kind(), Kind::Denied);
        assert_eq!(fault.way_out(), Some("allowed are pandas, scikit-learn"));
        assert!(AllowedPackages::parse(["a b"]).is_err());
    }
}
