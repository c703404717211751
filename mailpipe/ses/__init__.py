"""Amazon SES (API v2): what is asked (`request`), what an answer means (`answer`), and the client (`client`).

`request` and `answer` are pure; only `client` knows boto3 and the network.
"""
