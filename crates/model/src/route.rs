//! Which sandbox code goes to that names a template and not a sandbox: one that has what it needs, if there is one.

use std::cmp::Reverse;

use crate::{SandboxId, TemplateRef};

/// What code needs of its sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needs {
    pub template: TemplateRef,
    /// The key of the environment that it runs in.
    pub environment: Option<String>,
}

/// A sandbox that nobody uses now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub id: SandboxId,
    pub template: TemplateRef,
    /// Keys of the environments that are attached to it.
    pub environments: Vec<String>,
    /// The environment whose interpreter waits in it, ready; the empty key is the template's own interpreter.
    pub interpreters: Vec<String>,
    pub standing: Standing,
    /// A caller whom it does not wait for never gets it.
    pub is_for_caller: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// In the pool: nobody has had it yet.
    Fresh,
    /// Somebody had it, and it is kept for whoever comes back.
    Kept,
}

/// Sandboxes in the order in which they are to be tried. What is not in the list is taken when none of these can be had:
/// any other of the pool, or a new one.
///
/// 1. Only those of the template.
/// 2. Those that have the environment go before those that do not.
/// 3. Among equals, those whose interpreter is ready, and those that were kept.
/// 4. Without any, a sandbox is claimed as for everybody.
pub fn route(needs: &Needs, candidates: &[Candidate]) -> Vec<SandboxId> {
    let wanted = needs.environment.as_deref().unwrap_or_default();
    let mut fitting: Vec<(&Candidate, bool, bool)> = candidates
        .iter()
        .filter(|candidate| candidate.template == needs.template && candidate.is_for_caller)
        .map(|candidate| {
            let has_environment =
                !wanted.is_empty() && candidate.environments.iter().any(|key| key == wanted);
            let is_warm = candidate.interpreters.iter().any(|key| key == wanted);
            (candidate, has_environment, is_warm)
        })
        .filter(|(candidate, has_environment, is_warm)| {
            *has_environment || *is_warm || candidate.standing == Standing::Kept
        })
        .collect();
    fitting.sort_by_key(|(candidate, has_environment, is_warm)| {
        Reverse((*has_environment, *is_warm, candidate.standing))
    });
    fitting.into_iter().take(MOST_TRIED).map(|(candidate, ..)| candidate.id).collect()
}

/// Each is a look into the store.
pub const MOST_TRIED: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn template(name: &str) -> TemplateRef {
        TemplateRef { owner: None, name: name.parse().unwrap() }
    }

    fn candidate(number: u8) -> Candidate {
        Candidate {
            id: SandboxId::from_random([number; 16]),
            template: template("default"),
            environments: Vec::new(),
            interpreters: Vec::new(),
            standing: Standing::Fresh,
            is_for_caller: true,
        }
    }

    fn numbers(needs: &Needs, candidates: &[Candidate]) -> Vec<u8> {
        let number = |id| (1..=9).find(|number| SandboxId::from_random([*number; 16]) == id).unwrap();
        route(needs, candidates).into_iter().map(number).collect()
    }

    fn with_pandas() -> Needs {
        Needs { template: template("default"), environment: Some("pandas".into()) }
    }

    fn plain() -> Needs {
        Needs { environment: None, ..with_pandas() }
    }

    #[test]
    fn a_sandbox_of_another_template_is_never_tried() {
        let other = Candidate {
            template: template("search"),
            environments: vec!["pandas".into()],
            standing: Standing::Kept,
            ..candidate(1)
        };
        assert!(numbers(&with_pandas(), &[other]).is_empty());
    }

    #[test]
    fn the_environment_counts_more_than_anything_else() {
        let kept = Candidate { standing: Standing::Kept, ..candidate(1) };
        let fresh_with_it = Candidate { environments: vec!["pandas".into()], ..candidate(2) };
        let kept_with_it = Candidate { standing: Standing::Kept, ..fresh_with_it.clone() };
        let kept_with_it = Candidate { id: candidate(3).id, ..kept_with_it };
        let warm = Candidate { interpreters: vec!["pandas".into()], ..fresh_with_it.clone() };
        let warm = Candidate { id: candidate(4).id, ..warm };
        assert_eq!(numbers(&with_pandas(), &[kept, fresh_with_it, kept_with_it, warm]), [4, 3, 2, 1]);
    }

    #[test]
    fn a_ready_interpreter_of_another_environment_is_worth_nothing() {
        let numpy = Candidate {
            environments: vec!["numpy".into()],
            interpreters: vec!["numpy".into(), String::new()],
            ..candidate(1)
        };
        assert!(numbers(&with_pandas(), std::slice::from_ref(&numpy)).is_empty());
        assert_eq!(numbers(&plain(), &[numpy]), [1]);
    }

    #[test]
    fn nothing_is_preferred_where_nothing_fits_better_than_the_pool() {
        assert!(numbers(&plain(), &[candidate(1), candidate(2)]).is_empty());
        assert!(numbers(&with_pandas(), &[candidate(1)]).is_empty());
    }

    #[test]
    fn what_waits_for_somebody_else_is_not_tried() {
        let theirs = Candidate {
            environments: vec!["pandas".into()],
            standing: Standing::Kept,
            is_for_caller: false,
            ..candidate(1)
        };
        assert!(numbers(&with_pandas(), &[theirs]).is_empty());
    }

    #[test]
    fn no_more_are_tried_than_is_worth_it() {
        let many: Vec<Candidate> = (1..=9)
            .map(|number| Candidate { environments: vec!["pandas".into()], ..candidate(number) })
            .collect();
        assert_eq!(numbers(&with_pandas(), &many), [1, 2, 3, 4]);
    }
}
