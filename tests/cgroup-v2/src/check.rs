//! Checks and the lines that tell the outside how they went.

use std::future::Future;
use std::time::Duration;

/// Only a hang gets there: emulated processors are slow.
const BOUND: Duration = Duration::from_secs(60);

/// What a check found to be wrong, as a text for the report. It has no `Display` of its own, so that every error that
/// has one turns into it.
#[derive(Debug)]
pub(crate) struct Wrong(String);

impl<E: std::fmt::Display> From<E> for Wrong {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

pub(crate) type Verdict = Result<(), Wrong>;

/// Ends the check unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($why:tt)+) => {
        if !$condition {
            return Err($crate::check::Wrong::from(format!($($why)+)));
        }
    };
}
pub(crate) use ensure;

/// Carries out checks of a suite, each named by its function.
macro_rules! check_all {
    ($ground:expr, $($check:ident),+ $(,)?) => {
        $($crate::check::report($ground.suite, stringify!($check), $check(&$ground)).await;)+
    };
}
pub(crate) use check_all;

/// Waits for the verdict and writes its line: `ok SUITE NAME` or `FAIL SUITE NAME: why`.
pub(crate) async fn report(suite: &str, name: &str, check: impl Future<Output = Verdict>) {
    match tokio::time::timeout(BOUND, check).await {
        Ok(Ok(())) => println!("ok {suite} {name}"),
        Ok(Err(Wrong(why))) => println!("FAIL {suite} {name}: {}", why.replace('\n', " ")),
        Err(_) => println!("FAIL {suite} {name}: no end after {} s", BOUND.as_secs()),
    }
}

/// Waits until something is so. The check's own bound ends a wait in vain; the text then says what for.
pub(crate) async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) -> Verdict {
    for _ in 0..BOUND.as_millis() / 40 {
        if is_so() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err(format!("{what} did not come").into())
}
