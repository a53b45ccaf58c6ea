//! The address of a web service, as people and other programs write it in their settings.

use std::fmt;
use std::str::FromStr;

use super::{Host, NotAHost, Rule, Scheme};

/// Where a service is. Its user name and password are dropped while it is read, and so is the query: whatever is made
/// from this, a rule, a message or a log line, cannot tell them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WebAddress {
    pub scheme: Scheme,
    pub host: Host,
    pub port: u16,
    pub path: String,
    /// Whether it had a user name or a password.
    pub had_credentials: bool,
}

/// What is wrong is told without the text: it may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAWebAddress {
    #[error("this is not the address of a web service: write it as in https://host.example/path")]
    Form,
    #[error("a web service is reached by http or https")]
    Scheme,
    #[error("the port of the address is not a number from 1 to 65535")]
    Port,
    #[error("the host of the address: {0}")]
    Host(#[from] NotAHost),
}

impl WebAddress {
    /// The rule that lets a sandbox reach the service; `private` even where its name leads to a private address. An
    /// address that is written as such names itself.
    pub fn rule(&self, private: bool) -> Rule {
        let private = private && matches!(self.host, Host::Name(_));
        Rule { private, ..Rule::allowing(&self.host, self.port, Some(self.scheme)) }
    }
}

impl FromStr for WebAddress {
    type Err = NotAWebAddress;

    fn from_str(given: &str) -> Result<Self, NotAWebAddress> {
        let (scheme, rest) = given.trim().split_once("://").ok_or(NotAWebAddress::Form)?;
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return Err(NotAWebAddress::Scheme),
        };
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        // A password with a slash in it would be taken for a path, and its beginning for a host.
        if path.contains('@') || rest.contains(char::is_whitespace) {
            return Err(NotAWebAddress::Form);
        }
        let (credentials, place) = match authority.rsplit_once('@') {
            Some((credentials, place)) => (Some(credentials), place),
            None => (None, authority),
        };
        let colon = place.rfind(':').filter(|colon| !place[*colon..].contains(']'));
        let (host, port) = match colon {
            Some(colon) => (&place[..colon], Some(&place[colon + 1..])),
            None => (place, None),
        };
        let port = match port {
            Some(port) if !port.is_empty() => {
                let digits = port.bytes().all(|byte| byte.is_ascii_digit());
                let number = port.parse::<u16>().ok().filter(|number| digits && *number != 0);
                number.ok_or(NotAWebAddress::Port)?
            }
            _ => scheme.default_port().unwrap_or(443),
        };
        let had_credentials = credentials.is_some_and(|credentials| !credentials.is_empty());
        Ok(Self { scheme, host: host.parse()?, port, path: path.to_owned(), had_credentials })
    }
}

impl fmt::Display for WebAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.name(), self.host)?;
        if self.scheme.default_port() != Some(self.port) {
            write!(f, ":{}", self.port)?;
        }
        f.write_str(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_people_write_it() {
        for (given, shown, rule) in [
            ("https://index.example/simple", "https://index.example/simple", "allow https://index.example"),
            ("HTTP://Index.Example:80", "http://index.example", "allow http://index.example"),
            (
                "http://10.1.2.3:3141/a/+simple/",
                "http://10.1.2.3:3141/a/+simple/",
                "allow http://10.1.2.3:3141",
            ),
            ("http://[::1]:8080", "http://[::1]:8080", "allow http://[::1]:8080"),
            (" https://a.example/?q#f ", "https://a.example/", "allow https://a.example"),
            ("https://a.example:/x", "https://a.example/x", "allow https://a.example"),
        ] {
            let address: WebAddress = given.parse().unwrap();
            assert_eq!(
                (address.to_string().as_str(), address.rule(false).to_string().as_str()),
                (shown, rule)
            );
        }
    }

    #[test]
    fn user_name_password_and_query_are_gone_when_it_is_read() {
        for given in [
            "https://ada:hunter2@index.example/simple?token=hunter2",
            "https://hunter2@index.example/simple",
            "https://ada:hunter2@@index.example/simple#hunter2",
        ] {
            let address: WebAddress = given.parse().unwrap();
            assert!(address.had_credentials, "{given}");
            assert!(!format!("{address:?} {address} {}", address.rule(true)).contains("hunter2"), "{given}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_not_repeated() {
        for given in [
            "",
            "index.example",
            "ftp://ada:hunter2@index.example/",
            "https://",
            "https://ada:hunter2@/",
            "https://ada:hunter2/x@index.example/",
            "https://ada:hunt er2@index.example/",
            "https://index.example:hunter2/",
            "https://index.example:0/",
            "https://ada:hunter2@0x7f.1/",
        ] {
            let wrong = given.parse::<WebAddress>().unwrap_err();
            assert!(!format!("{wrong} {wrong:?}").contains("hunter2"), "{given}: {wrong}");
        }
    }

    #[test]
    fn only_a_name_needs_the_word_private() {
        let rule = |given: &str| given.parse::<WebAddress>().unwrap().rule(true).to_string();
        assert_eq!(rule("http://index.example"), "allow http://index.example private");
        assert_eq!(rule("http://10.0.0.1"), "allow http://10.0.0.1");
    }
}
