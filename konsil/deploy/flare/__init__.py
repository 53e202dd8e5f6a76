"""NVIDIA FLARE as what carries the messages. It knows no method, and no meaning of a message.

    admin's machine      the server's machine                        a site's machine
    submit  ---------->  FLARE server: supervisor.py  <-----------  FLARE client: site.py
                            |  starts for every session                 |  starts for every session
                         controller.py: coordinate()  <----------->  executor.py
                                                                        |  a socket of its own
                                                     parties.py: SiteClient.answer()

A FLARE job is only a *session*. All state is on disk at the server and at the sites, and every
request may be repeated, so a session that ends before its run does is followed by another.
"""
