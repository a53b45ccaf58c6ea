//! `cubicle first-run`: a small program in the strongest sandbox that this host has, and its receipt.

use std::collections::BTreeMap;

use cubicle_backend::Probed;
use cubicle_model::{
    Command, ExecId, ExecSpec, Exit, Fault, Isolation, Kind, Lifetime, Limits, Medium, Placement, Root,
    SandboxId, Trust,
};

use super::{doctor, receipt};
use crate::attend::Passing;
use crate::attend::local::attend;
use crate::context::{Context, guest, random_bits};
use crate::failure::{Ending, Failure, printable};
use crate::signals::Signals;

const PROGRAM: &str = r#"
echo "  I am         uid $(id -u), gid $(id -g), on $(uname -n)"
echo "  I am in      $(pwd), my home is $HOME"
echo "  I can see    $(ls / | tr '\n' ' ')"
echo "  processes    $(ls -d /proc/[0-9]* | wc -l)"
echo "  network      $(awk -F: 'NR > 2 { print $1 }' /proc/net/dev | tr -d '\n')"
if touch /usr/written 2>/dev/null; then echo "  /usr         writable"; else echo "  /usr         read-only"; fi
if cat /etc/shadow >/dev/null 2>&1; then echo "  /etc/shadow  readable"; else echo "  /etc/shadow  not there"; fi
"#;

pub(crate) async fn first_run(context: &Context) -> Result<Ending, Failure> {
    let mut signals = Signals::catch()?;
    let backend = context.backend().await?;
    let probed = backend.probe().await;
    let Some(isolation) = probed.strongest() else {
        super::print(&doctor::report(&probed, Trust::default().default_isolation()))?;
        let fault = Fault::new(Kind::Denied, "no isolation level works on this host");
        return Err(fault.hint("each 'fix' above makes one of them work").into());
    };
    super::print(&choice(&probed, isolation))?;

    let place = Placement {
        id: SandboxId::from_random(random_bits()),
        lifetime: Lifetime::Bound,
        isolation,
        // The trust that the level may serve: this program is known, so the level alone decides.
        trust: Trust::High,
        root: Root::Host,
        workspace: Medium::Memory,
        limits: Limits::default(),
        env: BTreeMap::new(),
        labels: [("command".to_owned(), "first-run".to_owned())].into(),
    };
    let seen = tokio::select! {
        seen = backend.ensure(&place) => seen?,
        // A bound sandbox ends with this process.
        signal = signals.next_ending() => return Ok(Ending::Signal(signal)),
    };
    super::print("\na program in the sandbox says\n")?;
    let guest = guest(&backend, place.id).await?;
    let spec = ExecSpec::new(Command::Shell(PROGRAM.into()));
    let passing = Passing { tty: false, input: false, keep_output: false };
    let attended =
        attend(&guest, spec, ExecId::from_random(random_bits()), passing, None, &mut signals).await;
    _ = backend.destroy(place.id).await;
    let attended = attended?;
    if let Some(found) = &seen.receipt {
        super::print(&format!("\n{}", receipt::summary(found)))?;
    }
    super::print("\nyour turn: cubicle run -- CMD\n")?;
    match attended.exit {
        Exit::Signal(signal) => Ok(Ending::Signal(signal)),
        exit => Ok(Ending::Code(exit.shell_code())),
    }
}

/// Which level it is, and why not a stronger one.
fn choice(probed: &Probed, isolation: Isolation) -> String {
    let mut text = format!("isolation: {isolation}, the strongest that works on this host\n");
    let stronger = probed.levels.iter().filter(|level| level.isolation > isolation);
    for (level, unmet) in stronger.flat_map(|level| level.unmet.iter().map(move |unmet| (level, unmet))) {
        text.push_str(&format!(
            "  not {}: {}: {} (fix: {})\n",
            level.isolation,
            printable(&unmet.check),
            printable(&unmet.because),
            printable(&unmet.fix)
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use cubicle_backend::Backend;

    #[tokio::test]
    async fn the_choice_says_why_it_is_not_a_stronger_level() {
        let probed = cubicle_backend::fake::FakeHost::default().open().probe().await;
        let text = choice(&probed, probed.strongest().unwrap());
        assert!(text.starts_with("isolation: namespaces, "), "{text}");
        assert!(text.contains("not gvisor: ") && !text.contains("landlock"), "{text}");
    }
}
