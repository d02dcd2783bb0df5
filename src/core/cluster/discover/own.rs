//! Determines which values belong to this job only, and not to other jobs of the same user.

use std::fmt::Display;

use crate::cluster::discover::token_file;
use crate::cluster::master;
use crate::cluster::overrides;
use crate::environment::{Environment, ReadError};
use crate::error::{Error, Reason};
use crate::launcher::context::Context;
use crate::value::host::Host;
use crate::value::munge::Munge;
use crate::value::placement::{Placement, Sourced};
use crate::value::port::Port;
use crate::value::token::Token;

/// Whether the master's address and its port belong to this job only. False if a user set them.
pub(super) struct Own {
    pub addr: bool,
    pub port: bool,
}

impl Own {
    /// `context` is what mpienv chose for this process, if anything.
    pub(super) fn of(
        placement: &Placement,
        context: Option<&Context>,
        addr: Option<&Sourced<Host>>,
        port: &Sourced<Port>,
    ) -> Own {
        let of_context = |pick: fn(&Context) -> Option<&String>| context.and_then(pick);
        let addr_in_context = of_context(|context| context.master_addr.as_ref());
        let port_in_context = of_context(|context| context.master_port.as_ref());
        // Some launchers set the job's master together with the rank.
        let comes_along = placement.launcher.spec().sets_master();
        Own {
            addr: addr.is_some_and(|addr| {
                is_own(
                    addr,
                    [master::MASTER_ADDR, overrides::MASTER_ADDR],
                    addr_in_context,
                    comes_along,
                )
            }),
            port: is_own(
                port,
                [master::MASTER_PORT, overrides::MASTER_PORT],
                port_in_context,
                comes_along,
            ),
        }
    }
}

fn is_own(
    known: &Sourced<impl Display>,
    [plain, asked]: [&str; 2],
    in_context: Option<&String>,
    comes_along: bool,
) -> bool {
    let is_of_context = || in_context.is_some_and(|own| *own == known.value.to_string());
    known.source != asked && (known.source != plain || comes_along || is_of_context())
}

/// Returns how to reach MUNGE, if the ranks authenticate with it.
pub(super) fn munge(environment: &Environment) -> Result<Option<Munge>, Error> {
    let text = of_security(environment, overrides::AUTH, "set it to munge on all ranks")?;
    let parse = |text: &str| {
        text.parse().map_err(|_| Error::of_setting(Reason::NotMunge, overrides::AUTH, text))
    };
    text.map(parse).transpose()
}

/// Returns a setting that protects the meeting. One that is set and blank is an error, because the
/// user who set it believes that the meeting is protected.
fn of_security<'a>(
    environment: &'a Environment,
    name: &'static str,
    remedy: &'static str,
) -> Result<Option<&'a str>, Error> {
    let refuse = |reason| Error::new(reason, format!("{remedy}, or unset {name}")).of(name);
    match environment.get_str(name) {
        // No part of a secret belongs into an error.
        Err(ReadError::NotUnicode { .. }) if name == overrides::TOKEN => {
            Err(refuse(Reason::NotUnicode))
        }
        Err(error) => Err(Error::reading_setting(error)),
        Ok(text) => match text.filter(|text| !text.trim().is_empty()) {
            None if environment.get(name).is_some() => Err(refuse(Reason::BlankSecurity)),
            text => Ok(text),
        },
    }
}

/// Returns the job's token, and true unless a user set it.
pub(super) fn token(
    environment: &Environment,
    placement: &Placement,
    context: Option<Context>,
) -> Result<(Token, bool), Error> {
    let token = of_security(
        environment,
        overrides::TOKEN,
        "set it to what `openssl rand -hex 32` prints, on all ranks",
    )?;
    let file =
        of_security(environment, overrides::TOKEN_FILE, "name the file that holds the secret")?;
    match (token, file) {
        (Some(_), Some(path)) => {
            let reason = Reason::TokenFile(format!("{} is set too", overrides::TOKEN));
            return Err(Error::new(reason, "unset one of them")
                .of(overrides::TOKEN_FILE)
                .found(path));
        }
        (Some(text), None) => return Ok((Token::new(text), false)),
        (None, Some(path)) => return Ok((token_file::read(path)?, false)),
        (None, None) => {}
    }
    let of_job = || placement.job.as_ref().map(|job| Token::of_job(&job.value)).unwrap_or_default();
    Ok((context.and_then(|context| context.token).map_or_else(of_job, Token::new), true))
}
