//! Providers whose keys are known by the name of their variable: such a key goes to its provider unless somebody says
//! otherwise.

use cubicle_model::{CredentialBinding, SecretName};

struct Provider {
    /// The first that is set counts.
    variables: &'static [&'static str],
    host: &'static str,
    form: &'static str,
    base: &'static str,
}

const PROVIDERS: [Provider; 3] = [
    Provider {
        variables: &["ANTHROPIC_API_KEY"],
        host: "api.anthropic.com",
        form: "header:x-api-key",
        base: "anthropic",
    },
    Provider { variables: &["OPENAI_API_KEY"], host: "api.openai.com", form: "bearer", base: "openai" },
    Provider {
        variables: &["GEMINI_API_KEY", "GOOGLE_API_KEY"],
        host: "generativelanguage.googleapis.com",
        form: "header:x-goog-api-key",
        base: "google",
    },
];

impl Provider {
    fn binding(&self) -> Option<CredentialBinding> {
        let binding = CredentialBinding::new(self.host.parse().ok()?, self.form.parse().ok()?);
        Some(CredentialBinding { base: self.base.parse().ok(), ..binding })
    }
}

/// Where a secret of this name usually goes.
pub(crate) fn usual_binding(name: &SecretName) -> Option<CredentialBinding> {
    PROVIDERS.iter().find(|provider| provider.variables.contains(&name.as_str()))?.binding()
}

/// The variables that hold the key of a provider, one for each.
pub(crate) fn found(is_set: impl Fn(&str) -> bool) -> impl Iterator<Item = (SecretName, CredentialBinding)> {
    PROVIDERS.iter().filter_map(move |provider| {
        let variable = provider.variables.iter().find(|variable| is_set(variable))?;
        Some((variable.parse().ok()?, provider.binding()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_provider_has_a_binding() {
        let all = PROVIDERS.iter().flat_map(|provider| provider.variables);
        for variable in all {
            let binding = usual_binding(&variable.parse().unwrap()).expect(variable);
            assert_eq!(binding.check(), Ok(()));
            assert!(binding.base.is_some() && !binding.even_plain);
        }
        assert_eq!(usual_binding(&"DATABASE_PASSWORD".parse().unwrap()), None);
        let anthropic = usual_binding(&"ANTHROPIC_API_KEY".parse().unwrap()).unwrap();
        assert_eq!(
            (anthropic.host.as_str(), anthropic.form.to_string()),
            ("api.anthropic.com", "header:x-api-key".into())
        );
    }

    #[test]
    fn one_key_of_each_provider_is_found() {
        let names = |set: &[&str]| {
            let found = found(|variable| set.contains(&variable));
            found.map(|(name, _)| name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names(&[]), Vec::<String>::new());
        assert_eq!(names(&["GOOGLE_API_KEY"]), ["GOOGLE_API_KEY"]);
        assert_eq!(
            names(&["GOOGLE_API_KEY", "GEMINI_API_KEY", "OPENAI_API_KEY", "HOME"]),
            ["OPENAI_API_KEY", "GEMINI_API_KEY"]
        );
    }
}
