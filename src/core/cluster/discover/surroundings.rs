//! What the variables show besides this process's place: the surrounding platform, and how often
//! the job was restarted.

use crate::cluster::overrides::RESTART_COUNT;
use crate::environment::Environment;
use crate::error::{Error, Reason};
use crate::launcher::{DETECTORS, Starts, is_shared, restarts};
use crate::value::placement::{Launcher, NOT_PROVIDED, Placement, Source, Sourced};

/// Returns the platform that started a process on this node: the launcher itself, or a platform
/// around it.
pub(super) fn platform(
    environment: &Environment,
    placement: &Placement,
    source: &Source,
) -> Sourced<Option<Launcher>> {
    let is_platform = |launcher: Launcher| launcher.spec().starts == Starts::OnePerNode;
    if is_platform(placement.launcher) {
        return Sourced::new(Some(placement.launcher), source.clone());
    }
    let around =
        DETECTORS.iter().filter(|detector| is_platform(detector.launcher)).find_map(|detector| {
            let marker = detector.detect(environment)?;
            let node = (detector.launcher.spec().read)(environment, marker).ok()?;
            // Users set some of these variables by hand.
            let is_sure = !is_shared(marker.variable) && node.local.size() == Some(1);
            is_sure.then(|| {
                Sourced::new(Some(detector.launcher), marker.display_variable(environment))
            })
        });
    around.unwrap_or(Sourced::new(None, NOT_PROVIDED))
}

/// Returns how often the job was restarted, from the launcher's own variable or a surrounding
/// launcher's.
pub(super) fn restart_count(
    environment: &Environment,
    launcher: Launcher,
) -> Result<Sourced<Option<u32>>, Error> {
    let read = |variable: &'static str| -> Result<Option<u32>, Error> {
        let Some(text) = environment.get_str(variable).map_err(Error::reading_setting)? else {
            return Ok(None);
        };
        let number = text
            .parse()
            .map_err(|_| Error::of_launcher(launcher, Reason::NotANumber, variable).found(text))?;
        Ok(Some(number))
    };
    if let Some(variable) = restarts(launcher)
        && let Some(count) = read(variable)?
    {
        return Ok(Sourced::new(Some(count), variable));
    }
    if let Some(count) = read(RESTART_COUNT)? {
        return Ok(Sourced::new(Some(count), RESTART_COUNT));
    }
    // An unreadable variable of another launcher is not a reason to fail.
    let of_others = Launcher::ALL.iter().filter_map(|&other| restarts(other));
    let mut counts =
        of_others.filter_map(|variable| Some(Sourced::new(Some(read(variable).ok()??), variable)));
    Ok(counts.next().unwrap_or(Sourced::new(None, NOT_PROVIDED)))
}
