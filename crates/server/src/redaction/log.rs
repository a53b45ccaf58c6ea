//! What the server's log leaves out.

use std::borrow::Cow;
use std::sync::{Arc, PoisonError, RwLock};

use cubicle_egress::redact::{Redaction, Shapes};
use cubicle_model::Name;

/// Masks lines of a log: what looks like a credential, and the secrets of tenants that a server has come to know. Whoever
/// writes the log has a copy, and the server another one of the same.
#[derive(Debug, Clone)]
pub struct LogMasks(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shapes: Arc<Shapes>,
    alone: Redaction,
    known: RwLock<Vec<(Name, Redaction)>>,
}

impl LogMasks {
    pub fn new(shapes: Shapes) -> Self {
        let shapes = Arc::new(shapes);
        let alone = Redaction::new([], Shapes::none()).with_shapes(Arc::clone(&shapes));
        Self(Arc::new(Inner { shapes, alone, known: RwLock::default() }))
    }

    /// A text of a line, which stays where it is when there is nothing to mask.
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut shown = Cow::Borrowed(text);
        let known = self.0.known.read().unwrap_or_else(PoisonError::into_inner);
        // Shapes come last: a mask over a part of a known secret would hide the rest from being found.
        for redaction in known.iter().map(|(_, known)| known).chain([&self.0.alone]) {
            if let (Cow::Owned(masked), _) = redaction.text(&shown) {
                shown = Cow::Owned(masked);
            }
        }
        shown
    }

    pub(super) fn shapes(&self) -> Arc<Shapes> {
        Arc::clone(&self.0.shapes)
    }

    pub(super) fn know(&self, tenant: &Name, known: &Redaction) {
        let mut all = self.0.known.write().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(other, _)| other != tenant);
        if !known.is_empty() {
            all.push((tenant.clone(), known.clone()));
        }
    }

    pub(super) fn forget(&self, tenant: &Name) {
        self.0.known.write().unwrap_or_else(PoisonError::into_inner).retain(|(other, _)| other != tenant);
    }
}

#[cfg(test)]
mod tests {
    use cubicle_egress::secret::Secret;

    use super::*;

    #[test]
    fn a_line_is_masked_for_all_tenants_that_are_known() {
        let masks = LogMasks::new(Shapes::usual());
        let (acme, other): (Name, Name) = ("acme".parse().unwrap(), "other".parse().unwrap());
        let of = |value: &str| Redaction::new([&Secret::new(value)], Shapes::none());
        masks.know(&acme, &of("secret-of-acme"));
        masks.know(&other, &of("secret-of-other"));
        let both = "sk-abcdefghijklmnopqrstuvwx/and-more";
        masks.know(&"third".parse().unwrap(), &of(both));
        assert_eq!(masks.text(both), "*".repeat(both.len()), "no part of a secret is left beside a shape");
        let line = "secret-of-acme secret-of-other AKIAIOSFODNN7EXAMPLE";
        assert_eq!(masks.text(line), format!("{} {} {}", "*".repeat(14), "*".repeat(15), "*".repeat(20)));
        masks.know(&acme, &of("a-newer-secret"));
        masks.forget(&other);
        assert_eq!(masks.text(line), format!("secret-of-acme secret-of-other {}", "*".repeat(20)));
        assert!(matches!(masks.text("nothing"), Cow::Borrowed(_)));
    }
}
